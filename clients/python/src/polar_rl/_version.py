# Written by `npm run docs` from the route table in src/api. Do not edit.
VERSION = "0.1.0"
