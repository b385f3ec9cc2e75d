// Writes the pages that are made from the source: `npm run docs`. With --check it writes nothing and names stale pages.
import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { readFile, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import * as z from 'zod'
import { toOpenApi } from '../src/api/openapi.ts'
import { routes as apiRoutes } from '../src/api/routes/index.ts'
import { variableOf } from '../src/config/environment.ts'
import { type ConfigSchema, toJsonSchema } from '../src/config/list-fields.ts'
import type { JsonShape } from '../src/lib/json/json-shape.ts'
import {
  llamacppFields,
  openaiFields,
  REJECTED_FIELDS,
  sglangFields,
  vllmFields,
} from '../src/gateway/upstreams/wire/chat-fields.ts'
import { anthropicMessagesFields } from '../src/gateway/dialects/anthropic-messages-fields.ts'
import { googleGenerateFields } from '../src/gateway/dialects/google-generate-fields.ts'
import { dialects } from '../src/gateway/dialects/index.ts'
import { openaiResponsesFields } from '../src/gateway/dialects/openai-responses-fields.ts'
import { quirks } from '../src/gateway/quirks/index.ts'
import { boundaryOf, FailureCode, failureClasses } from '../src/model/failure.ts'
import type { Harness } from '../src/node/harness/presets/harness.ts'
import { presets } from '../src/node/harness/presets/index.ts'
import { evaluators } from '../src/trajectory/evaluators/index.ts'
import packageJson from '../package.json' with { type: 'json' }
import { replaceEngineTable } from './engine-table.ts'

const root = dirname(import.meta.dirname)

interface Page {
  /** Relative to the repository root. */
  path: string
  render(): string
}

const pages: readonly Page[] = [
  { path: 'docs/failures.md', render: renderFailures },
  { path: 'docs/dialects.md', render: renderDialects },
  { path: 'docs/harness-settings.md', render: renderHarnessSettings },
  { path: 'docs/evaluator-settings.md', render: renderEvaluatorSettings },
  { path: 'docs/config.md', render: renderConfig },
  { path: 'docs/openapi.json', render: renderOpenApi },
  { path: 'docs/engines.md', render: () => replaceEngineTable(readFileSync(join(root, 'docs/engines.md'), 'utf8')) },
]

const isCheck = process.argv.includes('--check')
const stale: string[] = []
for (const page of pages) {
  const file = join(root, page.path)
  const text = format(page.path, page.render())
  if ((await readFile(file, 'utf8').catch(() => '')) === text) continue
  stale.push(page.path)
  if (!isCheck) await writeFile(file, text)
}
for (const path of stale) console.log(isCheck ? `${path} is out of date; run npm run docs` : `wrote ${path}`)
if (isCheck && stale.length > 0) process.exitCode = 1

function renderFailures(): string {
  const rows = FailureCode.options.map((code) => {
    const { blame, retryable, status, meaning } = failureClasses[code]
    return [`\`${code}\``, boundaryOf(code), blame, retryable ? 'yes' : 'no', String(status), meaning]
  })
  return `# Failures

Every way a session can fail. The code is stable and is what programs should look at; the boundary is the seam at which
the failure was noticed. Only failures that are the policy's own doing may be scored: the others leave a session without
a reward, never with a zero. Retryable means that the same attempt may succeed later without anyone changing anything.
The status is what the caller of an HTTP request sees; for \`upstream.*\` the engine's own status takes its place.

${renderTable(['Code', 'Boundary', 'Blame', 'Retryable', 'Status', 'Meaning'], rows)}

This page is made from \`src/model/failure.ts\` by \`npm run docs\`.
`
}

function renderConfig(): string {
  const { properties = {} } = toJsonSchema()
  const top = Object.entries(properties).filter(([, schema]) => schema.properties === undefined)
  const sections = Object.entries(properties).filter(([, schema]) => schema.properties !== undefined)
  const table = (rows: readonly string[][]): string => renderTable(['Setting', 'Value', 'If absent', 'Meaning'], rows)
  return `# The configuration file

One file, \`polar.yaml\`, for the server, its nodes and the commands that talk to them: found by \`--config\`, by
\`POLAR_CONFIG\`, or in the current folder. All of it may be left out. How the parts are run is in
[a server and nodes](server.md).

\`\`\`yaml
data: /var/lib/polar
server:
  host: 0.0.0.0
  tokens:
    - { name: slime, scopes: [trainer, read], token_file: /etc/polar/slime.token }
    - { name: nodes, scopes: [node], token_env: POLAR_NODE_TOKEN }
node:
  server: http://10.0.0.5:8080
  token_env: POLAR_NODE_TOKEN
  widths: { init: 16, run: 32, postrun: 16 }
  allow: { paths: [/shared/tasks] }
engine:
  url: http://localhost:8000
\`\`\`

Of a flag, the environment and the file, in this order, the first that says something counts. What holds, and why, and
whether it is right:

\`\`\`sh
npm run polar -- config print --origins
npm run polar -- config check
npm run polar -- config schema > polar.schema.json   # for editors: # yaml-language-server: $schema=polar.schema.json
\`\`\`

- An unknown key or a wrong value is refused with the line it stands on, all of them at once, before anything is started.
- Secrets are never written into the file: \`…_file\` names a file and \`…_env\` an environment variable that has it. Nothing
  else in the file is replaced by what is in the environment.
- Relative paths are meant from where the file is, those of flags and variables from the current folder. \`~/\` is the home
  folder.
- Most settings can be given by a variable, too: \`server.lease_seconds\` is \`${variableOf('server.lease_seconds')}\`; lists have
  commas between their words. These have names of their own:

${renderTable(
  ['Variable', 'Is'],
  [
    ['`POLAR_CONFIG`', 'the file'],
    ['`POLAR_SERVER_URL`', '`server.url`, `node.server`, and where `polar task` looks for the server'],
    ['`POLAR_TOKEN`', 'the token of a node, or of `polar task`; `POLAR_TOKEN_FILE` names a file with it'],
    ['`POLAR_UPSTREAM_KEY`', 'the API key of the engine'],
    ['`POLAR_DATABASE_URL`', 'the postgres:// URL of the server'],
    ['`POLAR_HARNESS_DIR`', '`node.harness_dir`'],
  ],
)}

## For all of it

${table(top.flatMap(([key, schema]) => toConfigRows(key, schema)))}

${sections
  .map(([key, schema]) => {
    const rows = Object.entries(schema.properties ?? {}).flatMap(([inner, about]) =>
      toConfigRows(`${key}.${inner}`, about),
    )
    return `## ${key}\n\n${schema.description ?? ''}.\n\n${table(rows)}`
  })
  .join('\n\n')}

This page is made from \`src/config\` by \`npm run docs\`.
`
}

/** Rows of a setting, or of all settings of a section. */
function toConfigRows(path: string, schema: ConfigSchema): string[][] {
  const inner = schema.properties ?? schema.items?.properties ?? entriesOf(schema)?.properties
  const name =
    schema.properties !== undefined ? path : schema.items?.properties !== undefined ? `${path}[]` : `${path}.NAME`
  const below = Object.entries(inner ?? {}).flatMap(([key, about]) => toConfigRows(`${name}.${key}`, about))
  if (schema.properties !== undefined) return below
  const absent = schema.default === undefined ? '' : `\`${JSON.stringify(schema.default)}\``
  const value = inner === undefined ? configType(schema) : schema.items === undefined ? 'by name' : 'list'
  return [[`\`${path}\``, value, absent, schema.description ?? ''], ...below]
}

/** Type of a setting, for readers of the docs. */
function configType(schema: ConfigSchema): string {
  if (schema.items !== undefined) return `list of ${configType(schema.items)}`
  if (schema.enum !== undefined) return schema.enum.map((value) => `\`${String(value)}\``).join(', ')
  if (schema.format === 'path') return 'path'
  return (
    { string: 'text', integer: 'whole number', boolean: 'true, false', object: 'map' }[schema.type ?? ''] ??
    schema.type ??
    'any'
  )
}

function entriesOf({ additionalProperties }: ConfigSchema): ConfigSchema | undefined {
  return typeof additionalProperties === 'object' ? additionalProperties : undefined
}

function renderOpenApi(): string {
  return JSON.stringify(toOpenApi(apiRoutes, packageJson.version), null, 2)
}

function renderHarnessSettings(): string {
  return `# Settings, MCP servers and skills of each harness

What a task may say in \`agent\`: \`settings\`, \`mcp_servers\` and \`skills_path\`. Anything a preset does not know is refused
by name before something is started. How harnesses are installed and run is in [harnesses](harnesses.md).

${renderTable(
  ['Harness', 'MCP servers', 'Skills are copied to', 'Instruction'],
  presets.map(({ name, mcpTransports, skillsFolder, instruction }) => [
    `\`${name}\``,
    mcpTransports.join(', ') || 'none',
    skillsFolder === undefined ? 'none: refused' : `\`~/${skillsFolder}\``,
    instruction === 'stdin' ? 'standard input' : 'a file',
  ]),
)}

${presets.map(renderSettings).join('\n\n')}

This page is made from \`src/node/harness/presets\` by \`npm run docs\`.
`
}

function renderSettings({ name, title, settings }: Harness): string {
  const { properties = {} } = z.toJSONSchema(settings, { io: 'input' })
  const rows = Object.entries(properties).map(([key, schema]) => {
    const about = schema as JsonSchema
    return [`\`${key}\``, renderType(about), about.description ?? '']
  })
  const table = rows.length === 0 ? 'None.' : renderTable(['Setting', 'Value', 'Meaning'], rows)
  return `## ${name}: ${title}\n\n${table}`
}

function renderEvaluatorSettings(): string {
  const { oneOf = [] } = z.toJSONSchema(evaluators.config, { io: 'input' }) as { oneOf?: readonly JsonSchema[] }
  const sections = oneOf.map((schema) => {
    const { kind, ...settings } = schema.properties ?? {}
    const rows = Object.entries(settings).flatMap(([key, about]) => toRows(key, about, schema.required ?? []))
    const table = rows.length === 0 ? 'None.' : renderTable(['Setting', 'Value', 'If absent', 'Meaning'], rows)
    const lists = Object.entries(settings)
      .filter(([, { default: value }]) => isLong(value))
      .map(
        ([key, { default: value }]) =>
          `\n\n\`${key}\`, if absent: ${(value as string[]).map((each) => `\`${each}\``).join(', ')}.`,
      )
    return `## ${String(kind?.const)}\n\n${table}${lists.join('')}`
  })
  return `# Settings of each evaluator

What a task may say in \`evaluator.config\`. Anything else is refused with its path before something is started. Which
evaluator is for what, and how far each can be trusted, is in [evaluators](evaluators.md).

${sections.join('\n\n')}

This page is made from \`src/trajectory/evaluators\` by \`npm run docs\`.
`
}

/** Longer lists would make a table unreadable. */
function isLong(value: unknown): boolean {
  return Array.isArray(value) && value.length > 8
}

/** A setting with its nested settings. */
function toRows(name: string, schema: JsonSchema, required: readonly string[]): string[][] {
  const isRequired = required.includes(name.split('.').at(-1)!)
  const value = isLong(schema.default) ? 'see below' : `\`${JSON.stringify(schema.default)}\``
  const absent = isRequired ? 'required' : schema.default === undefined ? '' : value
  const inner = schema.properties === undefined ? schema.items : schema
  const rows = Object.entries(inner?.properties ?? {}).flatMap(([key, about]) =>
    toRows(`${name}.${key}`, about, inner?.required ?? []),
  )
  return [[`\`${name}\``, renderType(schema), absent, schema.description ?? ''], ...rows]
}

interface JsonSchema {
  type?: string | readonly string[]
  enum?: readonly string[]
  const?: unknown
  pattern?: string
  items?: JsonSchema
  anyOf?: readonly JsonSchema[]
  properties?: Readonly<Record<string, JsonSchema>>
  required?: readonly string[]
  default?: unknown
  description?: string
}

function renderType({ type, enum: values, pattern, items, anyOf }: JsonSchema): string {
  if (anyOf !== undefined) return anyOf.map(renderType).join(', or ')
  if (values !== undefined) return values.map((value) => `\`${value}\``).join(', ')
  if (items !== undefined) return `list of ${renderType(items)}s`
  return pattern === undefined ? [type ?? 'any'].flat().join(' or ') : `text like \`${pattern}\``
}

function renderDialects(): string {
  const fields = [
    ['Anthropic Messages', anthropicMessagesFields],
    ['OpenAI Responses', openaiResponsesFields],
    ['Google generateContent', googleGenerateFields],
  ] as const
  const routes = dialects.flatMap((dialect) =>
    dialect.routes.map(({ method, path, kind }) => [dialect.id, method, `\`${path}\``, kind]),
  )
  const tables = fields.map(([title, rows]) => {
    const cells = rows.map(({ field, handling }) => [`\`${field}\``, handling])
    return `## ${title}\n\n${renderTable(['Field', 'What becomes of it'], cells)}`
  })
  const rules = quirks.map(({ name, evidence }) => `- **${name}**: ${evidence}`)
  return `# The four provider APIs

A harness speaks to the gateway in its provider's API; the engine is asked in Chat Completions. What one API cannot say in
the other is carried through the harness sealed (signatures, encrypted reasoning), remembered by the gateway (the exact text
of tool arguments), or listed here as ignored. Only \`generate\` routes call the model; anything that is not in this table is
a 404 in the caller's own error shape.

${renderTable(['API', 'Method', 'Path', 'Kind'], routes)}

## OpenAI Chat Completions

A request comes from a sandbox, so the engine gets only the fields of this table, each byte for byte as the harness sent it,
with a few fields added for capture (\`forced\` in \`polar show --json\` lists them). \`developer\` messages become \`system\`
messages where they stand, tool arguments go back to the text that was sampled, an empty \`tools\` list is left out. Ids and log
probabilities reach the harness only if it asked for them.

${renderTable(['Field', 'vLLM', 'SGLang', 'llama.cpp', 'any other server'], renderEngineFields())}

\`model\` is the model that the gateway was started with, whatever name the harness sends. The other three APIs are written into
the same fields.

Every other field is dropped, and \`dropped_fields\` of the call's record names it. A content part of another type becomes the
text \`[unsupported content: …]\`. These fields are refused with a 400 when they have a value, because a harness that sets one
counts on it: ${[...REJECTED_FIELDS].map((name) => `\`${name}\``).join(', ')}.

Media must be inline data in all four APIs (\`data:\` URLs, base64): a request that names a place to load media from, such as
\`http://\`, \`file://\` or \`gs://\`, is refused with a 400.

${tables.join('\n\n')}

## Quirk rules

Bytes that change without meaning anything to the model are taken out of what the engine reads, never out of the log:

${rules.join('\n')}

This page is made from the tables beside the dialects by \`npm run docs\`.
`
}

/** One row for each field that a harness may set, with the engines that receive it. */
function renderEngineFields(): string[][] {
  const engines = [vllmFields, sglangFields, llamacppFields, openaiFields].map((shape) => new Set(pathsIn(shape, '')))
  const all = new Set(engines.flatMap((paths) => [...paths]))
  return [...all].map((path) => [`\`${path}\``, ...engines.map((paths) => (paths.has(path) ? 'yes' : '–'))])
}

function pathsIn(shape: JsonShape, path: string): string[] {
  switch (shape.kind) {
    case 'any':
    case 'scalar':
      return [path]
    case 'object':
      return Object.entries(shape.members).flatMap(([name, inner]) =>
        pathsIn(inner, path === '' ? name : `${path}.${name}`),
      )
    case 'list':
      return pathsIn(shape.items, `${path}[]`)
    case 'either':
      return shape.of.flatMap((one) => pathsIn(one, path))
    case 'tagged':
      return Object.entries(shape.variants).flatMap(([type, inner]) =>
        pathsIn(inner, path).map((found) => (found === `${path}.type` ? `${found}: ${type}` : found)),
      )
  }
}

function renderTable(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const lines = [head, head.map(() => '---'), ...rows]
  return lines.map((cells) => `| ${cells.map((cell) => cell.replaceAll('|', '\\|')).join(' | ')} |`).join('\n')
}

/** Formats the page like `npm run format`. */
function format(path: string, text: string): string {
  const args = [join(root, 'node_modules/.bin/oxfmt'), `--stdin-filepath=${path}`]
  return execFileSync(process.execPath, args, { cwd: root, input: text, encoding: 'utf8' })
}
