/**
 * Handling of each request field of this API; `docs/dialects.md` is generated from this list. Every name is also accepted in
 * snake_case. An entry for a field with arbitrary members (arguments, results, schemas) covers all members.
 */
export const googleGenerateFields: readonly { field: string; handling: string }[] = [
  { field: '(path) model', handling: 'mapped; `org/name` may be two segments, or publisher and model on Vertex' },
  { field: '(path) method', handling: 'read: `streamGenerateContent` streams, independent of the body' },
  { field: '(query) alt', handling: 'read: `sse` gives server-sent events, else a stream is one growing JSON array' },

  { field: 'systemInstruction', handling: 'mapped: a system message; a string, a part or a content' },
  { field: 'systemInstruction.role', handling: 'ignored: the role is always system' },
  { field: 'systemInstruction.parts[].text', handling: 'mapped, byte for byte' },

  { field: 'contents', handling: 'mapped; a single content may omit the brackets' },
  { field: 'contents[].role', handling: 'mapped; consecutive model contents are one turn; absent is the user' },
  { field: 'contents[].parts', handling: 'mapped; a single part may omit the brackets' },
  { field: 'contents[].parts[].text', handling: 'mapped, byte for byte; pieces of one model turn are joined' },
  {
    field: 'contents[].parts[].thought',
    handling: 'mapped: reasoning, unless a signature can be opened: its text is exact',
  },
  {
    field: 'contents[].parts[].thoughtSignature',
    handling: 'opened: the reasoning as sampled and the id of the call; a signature of another origin is ignored',
  },
  { field: 'contents[].parts[].inlineData.mimeType', handling: 'mapped: images; other media are kept unchanged' },
  { field: 'contents[].parts[].inlineData.data', handling: 'mapped: part of the data URL' },
  { field: 'contents[].parts[].inlineData.displayName', handling: 'ignored' },
  { field: 'contents[].parts[].fileData.mimeType', handling: 'mapped: images; other media are kept unchanged' },
  {
    field: 'contents[].parts[].fileData.fileUri',
    handling: 'mapped: http and data URLs; others are kept unchanged',
  },
  {
    field: 'contents[].parts[].functionCall.id',
    handling: 'mapped; absent: the id in the signature, else a generated id',
  },
  { field: 'contents[].parts[].functionCall.name', handling: 'mapped' },
  {
    field: 'contents[].parts[].functionCall.args',
    handling: 'mapped; the gateway restores the text as sampled, even if it was not JSON',
  },
  {
    field: 'contents[].parts[].functionResponse.id',
    handling: 'mapped; absent: the first open call of that name; equal repetitions in one content are dropped',
  },
  { field: 'contents[].parts[].functionResponse.name', handling: 'read: finds the call when there is no id' },
  {
    field: 'contents[].parts[].functionResponse.response',
    handling:
      'mapped: the text of `output`, `result`, `content` or `error`, anything else as JSON; `error` is a failure',
  },
  {
    field: 'contents[].parts[].functionResponse.parts[]',
    handling: 'mapped: images of the result, like images that directly follow it in the content',
  },
  { field: 'contents[].parts[].functionResponse.scheduling', handling: 'ignored' },
  { field: 'contents[].parts[].functionResponse.willContinue', handling: 'ignored' },
  { field: 'contents[].parts[].executableCode', handling: 'kept unchanged' },
  { field: 'contents[].parts[].codeExecutionResult', handling: 'kept unchanged' },
  { field: 'contents[].parts[].toolCall', handling: 'kept unchanged' },
  { field: 'contents[].parts[].toolResponse', handling: 'kept unchanged' },
  { field: 'contents[].parts[].videoMetadata', handling: 'kept unchanged with its part' },
  { field: 'contents[].parts[].mediaResolution', handling: 'ignored' },

  { field: 'tools', handling: 'mapped; a single tool may omit the brackets' },
  { field: 'tools[].functionDeclarations[].name', handling: 'mapped' },
  { field: 'tools[].functionDeclarations[].description', handling: 'mapped' },
  { field: 'tools[].functionDeclarations[].parameters', handling: "mapped: Google's schema becomes JSON Schema" },
  {
    field: 'tools[].functionDeclarations[].parametersJsonSchema',
    handling: 'mapped; takes precedence over `parameters`',
  },
  {
    field: 'tools[].functionDeclarations[].response',
    handling: 'ignored: engines have no field for the results of tools',
  },
  { field: 'tools[].functionDeclarations[].responseJsonSchema', handling: 'ignored, as `response`' },
  { field: 'tools[].functionDeclarations[].behavior', handling: 'ignored' },
  { field: 'tools[].googleSearch', handling: 'ignored: engines have no such service' },
  { field: 'tools[].googleSearchRetrieval', handling: 'ignored, as `googleSearch`' },
  { field: 'tools[].enterpriseWebSearch', handling: 'ignored, as `googleSearch`' },
  { field: 'tools[].googleMaps', handling: 'ignored, as `googleSearch`' },
  { field: 'tools[].urlContext', handling: 'ignored, as `googleSearch`' },
  { field: 'tools[].codeExecution', handling: 'ignored, as `googleSearch`' },
  { field: 'tools[].computerUse', handling: 'ignored, as `googleSearch`' },
  { field: 'tools[].fileSearch', handling: 'ignored, as `googleSearch`' },
  { field: 'tools[].retrieval', handling: 'ignored, as `googleSearch`' },
  { field: 'tools[].mcpServers', handling: 'ignored, as `googleSearch`' },

  {
    field: 'toolConfig.functionCallingConfig.mode',
    handling: 'mapped: AUTO and VALIDATED to auto, ANY to required, NONE to none; only with functions',
  },
  {
    field: 'toolConfig.functionCallingConfig.allowedFunctionNames',
    handling: 'mapped when ANY allows one function; several are not restricted',
  },
  { field: 'toolConfig.retrievalConfig', handling: 'ignored' },

  { field: 'generationConfig', handling: 'mapped as below; other fields are ignored' },
  { field: 'generationConfig.temperature', handling: 'mapped' },
  { field: 'generationConfig.topP', handling: 'mapped' },
  { field: 'generationConfig.topK', handling: 'mapped' },
  { field: 'generationConfig.seed', handling: 'mapped' },
  { field: 'generationConfig.candidateCount', handling: 'mapped: the number of candidates' },
  { field: 'generationConfig.maxOutputTokens', handling: 'mapped' },
  { field: 'generationConfig.stopSequences', handling: 'mapped' },
  { field: 'generationConfig.presencePenalty', handling: 'mapped' },
  { field: 'generationConfig.frequencyPenalty', handling: 'mapped' },
  { field: 'generationConfig.responseMimeType', handling: 'mapped: application/json; others are plain text' },
  { field: 'generationConfig.responseSchema', handling: "mapped: Google's schema becomes JSON Schema" },
  { field: 'generationConfig.responseJsonSchema', handling: 'mapped; takes precedence over `responseSchema`' },
  { field: 'generationConfig.responseLogprobs', handling: 'mapped: the chosen tokens, by id' },
  { field: 'generationConfig.logprobs', handling: 'ignored: only the chosen tokens are known' },
  {
    field: 'generationConfig.thinkingConfig.includeThoughts',
    handling: 'mapped: enables reasoning and shows it as thought parts; otherwise it is hidden',
  },
  {
    field: 'generationConfig.thinkingConfig.thinkingBudget',
    handling: 'mapped: 0 disables reasoning, any other value enables it',
  },
  { field: 'generationConfig.thinkingConfig.thinkingLevel', handling: 'mapped: effort' },
  { field: 'generationConfig.responseModalities', handling: 'ignored: answers are text' },
  { field: 'generationConfig.mediaResolution', handling: 'ignored' },
  { field: 'generationConfig.speechConfig', handling: 'ignored' },
  { field: 'generationConfig.imageConfig', handling: 'ignored' },

  { field: 'safetySettings', handling: 'ignored: engines have none' },
  { field: 'cachedContent', handling: 'ignored: engines cache every prefix' },
  { field: 'labels', handling: 'ignored' },
  { field: 'serviceTier', handling: 'ignored' },
  { field: 'generateContentRequest', handling: 'read by `countTokens`: the request to count' },
]
