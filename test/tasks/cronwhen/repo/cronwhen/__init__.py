"""When a cron line runs next."""
