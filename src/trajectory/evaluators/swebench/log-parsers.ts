import type { LogParser } from './log.ts'
import { parseGo, parseGoJson } from './go-logs.ts'
import {
  parseDjango,
  parseMatplotlib,
  parsePydantic,
  parsePytest,
  parsePytestOptions,
  parsePytestV2,
  parseSeaborn,
  parseSympy,
} from './python-logs.ts'
import {
  parseGrommet,
  parseJest,
  parseJestFiles,
  parseJestJson,
  parseKarma,
  parseMarked,
  parseMocha,
  parseTap,
  parseVitest,
} from './script-logs.ts'

/** Parsers by the names in rows, without the prefix `parse_log_`: kinds of output, and projects. */
const PARSERS: Readonly<Record<string, LogParser>> = {
  pytest: parsePytest,
  pytest_options: parsePytestOptions,
  pytest_v2: parsePytestV2,
  pytest_pydantic: parsePydantic,
  django: parseDjango,
  unittest: parseDjango,
  seaborn: parseSeaborn,
  sympy: parseSympy,
  matplotlib: parseMatplotlib,
  astroid: parsePytest,
  flask: parsePytest,
  marshmallow: parsePytest,
  pvlib: parsePytest,
  pyvista: parsePytest,
  sqlfluff: parsePytest,
  xarray: parsePytest,
  pydicom: parsePytestOptions,
  requests: parsePytestOptions,
  pylint: parsePytestOptions,
  astropy: parsePytestV2,
  scikit: parsePytestV2,
  sphinx: parsePytestV2,
  jest: parseJest,
  jest_json: parseJestJson,
  vitest: parseVitest,
  mocha: parseMocha,
  highlightjs: parseMocha,
  karma: parseKarma,
  tap: parseTap,
  carbon: parseJestFiles,
  react_pdf: parseJestFiles,
  grommet: parseGrommet,
  marked: parseMarked,
  gotest: parseGo,
  gotest_json: parseGoJson,
}

export const logParserNames: readonly string[] = Object.keys(PARSERS)

/** Returns a parser by its name, with or without `parse_log_`; undefined if it does not exist. */
export function findLogParser(name: string): LogParser | undefined {
  const short = name.replace(/^parse_log_/, '')
  return Object.hasOwn(PARSERS, short) ? PARSERS[short] : undefined
}
