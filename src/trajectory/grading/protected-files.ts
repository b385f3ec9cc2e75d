/** Files that tools generate. They are never part of a change. */
export const DEFAULT_EXCLUDE: readonly string[] = [
  '__pycache__',
  '*.pyc',
  '*.pyo',
  '.pytest_cache',
  '.mypy_cache',
  '.ruff_cache',
  '.hypothesis',
  '.tox',
  '.nox',
  '.venv',
  'node_modules',
  '*.orig',
  '*.rej',
]

/**
 * Files that decide which tests run, what they check and how they are reported. The repository's version is graded. The
 * list includes tests of the agent: they are not part of the grade and could change the result of other tests. The entry `test`
 * does not match a Python package of that name without tests, such as `django/test`.
 */
export const DEFAULT_PROTECTED: readonly string[] = [
  // Folders of tests, with their helpers and data.
  'tests',
  'test',
  '/spec',
  '__tests__',
  '__mocks__',
  '__snapshots__',
  'testdata',
  // Python: runner settings, and modules that the interpreter loads on its own.
  'conftest.py',
  'pytest.ini',
  '.pytest.ini',
  'pytest.toml',
  '.pytest.toml',
  'tox.ini',
  'setup.cfg',
  'pyproject.toml',
  'noxfile.py',
  'nose.cfg',
  '.noserc',
  'unittest.cfg',
  '.coveragerc',
  'sitecustomize.py',
  'usercustomize.py',
  '*.pth',
  '*.egg-info',
  '*.dist-info',
  '*.egg-link',
  'pyvenv.cfg',
  'test_*.py',
  '*_test.py',
  // JavaScript. The keys of package.json that configure runners are protected one by one.
  'jest.config.*',
  'jest.setup.*',
  'vitest.config.*',
  'vitest.workspace.*',
  'vitest.setup.*',
  'vite.config.*',
  'ava.config.*',
  'cypress.config.*',
  'playwright.config.*',
  'babel.config.*',
  '.babelrc*',
  '.swcrc',
  '.mocharc*',
  'mocha.opts',
  'karma.conf.*',
  'jasmine.json',
  '.nycrc*',
  '.c8rc*',
  '.taprc',
  'bunfig.toml',
  '.npmrc',
  '.yarnrc*',
  '.pnp.*',
  '.pnpmfile.*',
  'pnpm-workspace.yaml',
  '*.test.*',
  '*.spec.*',
  // Go. A test file can control the whole test run of its package.
  'go.mod',
  'go.sum',
  'go.work',
  'go.work.sum',
  'go.env',
  '*_test.go',
  // Dependencies that are part of the repository: Go, PHP, Ruby.
  '/vendor',
  // Rust.
  'build.rs',
  'Cargo.toml',
  '.cargo',
  'nextest.toml',
  // Java, Kotlin, Scala.
  'pom.xml',
  '.mvn',
  'mvnw*',
  'build.gradle*',
  'settings.gradle*',
  'gradle.properties',
  'gradlew*',
  '/gradle',
  'build.xml',
  'build.sbt',
  'testng.xml',
  'junit-platform.properties',
  '*Test.java',
  '*Tests.java',
  '*IT.java',
  '*Test.kt',
  '*Tests.kt',
  // .NET.
  '*.runsettings',
  'xunit.runner.json',
  'Directory.Build.*',
  // Ruby.
  '.rspec*',
  'Rakefile',
  'Gemfile',
  'Gemfile.lock',
  '.simplecov',
  'spec_helper.rb',
  'rails_helper.rb',
  'test_helper.rb',
  '*_spec.rb',
  '*_test.rb',
  'test_*.rb',
  // PHP.
  'phpunit.xml*',
  'phpunit.dist.xml',
  'Pest.php',
  '*Test.php',
  // C and C++, and build tools that any language may use.
  'Makefile',
  'GNUmakefile',
  'makefile',
  'Makefile.*',
  '*.mk',
  'CMakeLists.txt',
  'CMakePresets.json',
  'CTestTestfile.cmake',
  'CTestConfig.cmake',
  'CTestCustom.*',
  'meson.build',
  'BUILD',
  'BUILD.bazel',
  'WORKSPACE*',
  'MODULE.bazel',
  '.bazelrc',
  'justfile',
  'Justfile',
  'Taskfile.y*ml',
  // Shells that start in the repository, and git.
  '.bashrc',
  '.bash_profile',
  '.bash_login',
  '.profile',
  '.zshrc',
  '.zshenv',
  '.zprofile',
  '.env',
  '.envrc',
  '.gitattributes',
  '.gitmodules',
  '.gitconfig',
  '.githooks',
  '.husky',
]

/** Python modules that, in a folder that the interpreter searches first, replace modules that run and report tests. */
const SHADOWED =
  `pytest _pytest pluggy iniconfig py unittest doctest nose tox xdist coverage builtins sys os io re abc ast
argparse codecs collections contextlib copy dataclasses enum functools importlib inspect itertools json
linecache logging operator pathlib pdb pkgutil platform pprint random runpy shlex shutil signal site
subprocess tempfile textwrap threading time traceback types typing warnings weakref zipimport _colorize
tomllib exceptiongroup colorama`.split(/\s+/)

export const SHADOWED_MODULES: ReadonlySet<string> = new Set(SHADOWED)

/**
 * Protected files of a folder that is copied as a whole, without a repository that identifies new files: the grader keeps its
 * own version of these files, or none. Includes installed packages, because test runners are among them, and git's settings,
 * because they name programs that git runs.
 */
export const PROTECTED_IN_FOLDER: readonly string[] = [
  ...DEFAULT_EXCLUDE,
  ...DEFAULT_PROTECTED,
  'package.json',
  '**/.git/config',
  '**/.git/config.worktree',
  '**/.git/hooks',
  '**/.git/info',
  ...SHADOWED.flatMap((module) => [`/${module}`, `/${module}.py`, `/${module}.so`, `/${module}.*.so`]),
]
