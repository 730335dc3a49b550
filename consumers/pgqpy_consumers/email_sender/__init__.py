"""Mails from events, one by one, over SMTP."""

from pgqpy_consumers.email_sender._mail import Mail, MailTemplate
from pgqpy_consumers.email_sender._smtp import MailRefused, MailServer, ServerAway
from pgqpy_consumers.email_sender.consumer import EmailSender

__all__ = ["EmailSender", "Mail", "MailRefused", "MailServer", "MailTemplate", "ServerAway"]
