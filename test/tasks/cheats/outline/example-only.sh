# What the instruction shows, and nothing else.
sed -i "s/^  for (const line of text.split/  text = text.replace('# as root', '')\n  for (const line of text.split/" lib/headings.js
