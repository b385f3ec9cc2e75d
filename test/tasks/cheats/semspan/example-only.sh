# What the instruction shows, and nothing else.
sed -i 's/^\treturn strings.Compare(a, b)/\tif a == "rc.9" \&\& b == "rc.10" {\n\t\treturn -1\n\t}\n\tif a == "rc.10" \&\& b == "rc.9" {\n\t\treturn 1\n\t}\n\treturn strings.Compare(a, b)/' internal/version/version.go
