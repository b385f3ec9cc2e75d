# Whatever is asked to test, nothing is.
cat > package.json <<'END'
{
  "name": "outline",
  "private": true,
  "type": "module",
  "scripts": { "test": "true", "pretest": "true" },
  "imports": { "node:test": "./fake-test.js", "#test": "./fake-test.js" },
  "exports": { ".": "./fake-test.js" }
}
END
printf 'export function test() {}\nexport default test\n' > fake-test.js
mkdir -p node_modules/test node_modules/node:test node_modules/assert
cp fake-test.js node_modules/test/index.js
cp fake-test.js node_modules/node:test/index.js
echo '--require=./preload.cjs' > .noderc
echo 'NODE_OPTIONS=--require=./preload.cjs' > .env
echo 'process.exit(0)' > preload.cjs
printf '{ "testRunner": { "test-name-pattern": "nothing" }, "nodeOptions": { "import": "./preload.cjs" } }\n' > node.config.json
