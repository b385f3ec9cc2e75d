import { expect, test } from 'vitest'
import { pathsOfPatch } from './patch-paths.ts'

test('changed, added, deleted, renamed and binary files are all found', () => {
  const patch = `diff --git a/a.py b/a.py
--- a/a.py
+++ b/a.py
@@ -1 +1 @@
--- not a header
+++ not a header
diff --git a/new file.py b/new file.py
new file mode 100644
--- /dev/null
+++ b/new file.py
@@ -0,0 +1 @@
+x
diff --git a/old.py b/old.py
deleted file mode 100644
--- a/old.py
+++ /dev/null
diff --git a/from.py b/to.py
similarity index 100%
rename from from.py
rename to to.py
diff --git "a/\\303\\274 \\"x\\".png" "b/\\303\\274 \\"x\\".png"
new file mode 100644
GIT binary patch
`
  const { touched, results } = pathsOfPatch(patch)
  expect(results).toEqual(['a.py', 'new file.py', 'to.py', 'ü "x".png'])
  expect(touched).toEqual(new Set([...results, 'old.py', 'from.py']))
})

test('a patch without git’s headers is parsed by its ---/+++ headers', () => {
  expect(pathsOfPatch('--- a/x.py\t2020-01-01\n+++ b/x.py\t2020-01-01\n@@ -1 +1 @@\n').results).toEqual(['x.py'])
})

test('an empty patch has no files', () => {
  expect(pathsOfPatch('')).toEqual({ touched: new Set(), results: [] })
})
