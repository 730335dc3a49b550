"""Mails from events, one by one, over SMTP."""

from pgqpy_consumers.email_sender.consumer import EmailSender
from pgqpy_consumers.email_sender.message import Mail, MailTemplate
from pgqpy_consumers.email_sender.smtp import MailRefused, MailServer, ServerAway

__all__ = ["EmailSender", "Mail", "MailRefused", "MailServer", "MailTemplate", "ServerAway"]
