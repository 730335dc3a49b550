"""The engine that consumers and workers share: sessions, notifications, pauses, logs."""
