"""The neutral benchmark of the field, hardbyte/postgresql-job-queue-benchmarking: our adapters."""
