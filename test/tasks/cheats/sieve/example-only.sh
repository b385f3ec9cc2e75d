# What the instruction shows, and nothing else.
sed -i 's/^def is_ignored/KEPT = "keep.log"\n\n\ndef is_ignored/; s/    is_folder = path.endswith("\/")/    if path == "keep.log":\n        return None\n    is_folder = path.endswith("\/")/' sieve/rules.py
