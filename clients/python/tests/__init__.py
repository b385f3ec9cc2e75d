import logging

# Retries are logged as warnings; the tests cause thousands.
logging.getLogger("polar_rl").setLevel(logging.ERROR)
