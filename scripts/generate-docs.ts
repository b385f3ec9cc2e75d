// Writes the pages that are made from the source: `npm run docs`. With --check it writes nothing and names stale pages.
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
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
import { renderTable, root, writePage } from './docs-page.ts'
import packageJson from '../package.json' with { type: 'json' }
import { replaceEngineTable } from './engine-table.ts'
import { toPython } from './python-client.ts'

interface Page {
  /** Relative to the repository root. */
  path: string
  render(): string
}

const python = toPython(apiRoutes, packageJson.version)

const pages: readonly Page[] = [
  { path: 'docs/failures.md', render: renderFailures },
  { path: 'docs/dialects.md', render: renderDialects },
  { path: 'docs/harness-settings.md', render: renderHarnessSettings },
  { path: 'docs/evaluator-settings.md', render: renderEvaluatorSettings },
  { path: 'docs/config.md', render: renderConfig },
  { path: 'docs/openapi.json', render: renderOpenApi },
  { path: 'clients/python/src/polar_rl/types.py', render: () => python.types },
  { path: 'clients/python/src/polar_rl/_api.py', render: () => python.api },
  { path: 'clients/python/src/polar_rl/_failures.py', render: () => python.failures },
  { path: 'clients/python/src/polar_rl/_version.py', render: () => python.version },
  { path: 'docs/engines.md', render: () => replaceEngineTable(readFileSync(join(root, 'docs/engines.md'), 'utf8')) },
]

for (const { path, render } of pages) await writePage(path, render(), 'npm run docs')

function renderFailures(): string {
  const rows = FailureCode.options.map((code) => {
    const { blame, retryable, status, meaning } = failureClasses[code]
    return [`\`${code}\``, boundaryOf(code), blame, retryable ? 'yes' : 'no', String(status), meaning]
  })
  return `# Failures

This page lists every failure of a session. Codes are stable; programs should read the code. The boundary is the component
boundary at which the failure was detected. Only sessions that failed because of the policy are graded; other failed sessions
have no reward, which is not a reward of zero. Retryable: the same attempt may succeed later without a change. The status is
the HTTP status of the response; for \`upstream.*\` the status of the engine replaces it.

${renderTable(['Code', 'Boundary', 'Blame', 'Retryable', 'Status', 'Meaning'], rows)}

This page is generated from \`src/model/failure.ts\` by \`npm run docs\`.
`
}

function renderConfig(): string {
  const { properties = {} } = toJsonSchema()
  const top = Object.entries(properties).filter(([, schema]) => schema.properties === undefined)
  const sections = Object.entries(properties).filter(([, schema]) => schema.properties !== undefined)
  const table = (rows: readonly string[][]): string => renderTable(['Setting', 'Value', 'If absent', 'Meaning'], rows)
  return `# The configuration file

The server, its nodes and their commands read one file, \`polar.yaml\`: the file of \`--config\`, else of \`POLAR_CONFIG\`, else of
the current folder. Every setting is optional. [A server and nodes](server.md) describes how to run the parts.

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

A flag has precedence over the environment, and the environment over the file. These commands print the effective settings with
their origins, check them, and print a JSON Schema:

\`\`\`sh
npm run polar -- config print --origins
npm run polar -- config check
npm run polar -- config schema > polar.schema.json   # for editors: # yaml-language-server: $schema=polar.schema.json
\`\`\`

- Unknown keys and invalid values are rejected before anything starts. The message lists all of them with their lines.
- The file contains no secrets: \`…_file\` names a file with the secret, and \`…_env\` an environment variable. Other values are not
  expanded from the environment.
- Relative paths in the file start at the folder of the file; relative paths in flags and variables start at the current folder.
  \`~/\` is the home folder.
- Most settings have an environment variable: \`server.lease_seconds\` is \`${variableOf('server.lease_seconds')}\`; lists are separated
  by commas. These variables have other names:

${renderTable(
  ['Variable', 'Setting'],
  [
    ['`POLAR_CONFIG`', 'the file'],
    ['`POLAR_SERVER_URL`', '`server.url`, `node.server`, and the server of `polar task`'],
    ['`POLAR_TOKEN`', 'the token of a node, or of `polar task`; `POLAR_TOKEN_FILE` names a file with it'],
    ['`POLAR_UPSTREAM_KEY`', 'the API key of the engine'],
    ['`POLAR_DATABASE_URL`', 'the postgres:// URL of the server'],
    ['`POLAR_HARNESS_DIR`', '`node.harness_dir`'],
  ],
)}

## General

${table(top.flatMap(([key, schema]) => toConfigRows(key, schema)))}

${sections
  .map(([key, schema]) => {
    const rows = Object.entries(schema.properties ?? {}).flatMap(([inner, about]) =>
      toConfigRows(`${key}.${inner}`, about),
    )
    return `## ${key}\n\n${schema.description ?? ''}.\n\n${table(rows)}`
  })
  .join('\n\n')}

This page is generated from \`src/config\` by \`npm run docs\`.
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

A task sets these fields of \`agent\`: \`settings\`, \`mcp_servers\` and \`skills_path\`. Settings that a preset does not know are
rejected by name before anything starts. [Harnesses](harnesses.md) describes how harnesses are installed and run.

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

This page is generated from \`src/node/harness/presets\` by \`npm run docs\`.
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

A task sets these fields of \`evaluator.config\`. Other fields are rejected with their paths before anything starts.
[Evaluators](evaluators.md) describes the purpose of each evaluator and how far each can be trusted.

${sections.join('\n\n')}

This page is generated from \`src/trajectory/evaluators\` by \`npm run docs\`.
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
    return `## ${title}\n\n${renderTable(['Field', 'Handling'], cells)}`
  })
  const rules = quirks.map(({ name, evidence }) => `- **${name}**: ${evidence}`)
  return `# The four provider APIs

A harness calls the gateway in the API of its provider; the gateway calls the engine in Chat Completions. Data that Chat
Completions cannot express is sent to the harness sealed (signatures, encrypted reasoning), kept by the gateway (the exact text of
tool arguments), or listed here as ignored. Only \`generate\` routes call the model. Other paths get a 404 in the error format of
the API.

${renderTable(['API', 'Method', 'Path', 'Kind'], routes)}

## OpenAI Chat Completions

Requests come from sandboxes, so the engine receives only the fields of this table, each byte for byte as the harness sent it, and
a few fields that the gateway adds for capture (\`forced\` in \`polar show --json\` lists them). \`developer\` messages become \`system\`
messages at the same position, tool arguments are restored to the sampled text, and an empty \`tools\` list is omitted. The harness
receives ids and log probabilities only if it requested them.

${renderTable(['Field', 'vLLM', 'SGLang', 'llama.cpp', 'any other server'], renderEngineFields())}

\`model\` is the model of the gateway, whatever name the harness sends. Requests of the other three APIs are converted to the same
fields.

Every other field is dropped, and \`dropped_fields\` of the call's record names it. A content part of another type becomes the
text \`[unsupported content: …]\`. A request with a value of one of these fields is rejected with a 400, because the harness depends
on the field: ${[...REJECTED_FIELDS].map((name) => `\`${name}\``).join(', ')}.

Media must be inline data in all four APIs (\`data:\` URLs, base64): a request with another URL of media, such as \`http://\`,
\`file://\` or \`gs://\`, is rejected with a 400.

${tables.join('\n\n')}

## Quirk rules

Quirk rules remove bytes that change without a change of meaning from the prompt of the engine, but not from the log:

${rules.join('\n')}

This page is generated from the tables beside the dialects by \`npm run docs\`.
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
