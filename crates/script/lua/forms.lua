-- Shapes in which a configuration has its texts, made into one function for each hook.
local raw, entry = ...
local json = entry.json
local hooks = { "rewrite", "access", "before_proxy", "header_filter", "body_filter", "log" }

-- What is known of a text before it is used: it is called once where APISIX calls it to read it.
function entry.check(form, chunk)
  if form == "texts" or form == "answers" then return chunk end
  local made = chunk()
  if form == "functions" or form == "before" then
    if type(made) ~= "function" then error("only accept Lua function, the input code type is " .. type(made), 0) end
  elseif type(made) ~= "table" then
    error("expected a text that returns a table of functions, it returns a " .. type(made), 0)
  elseif form == "module" and type(made.init) == "function" then
    made.init()
  end
  return made
end

local makers = {}

-- APISIX: the first function that gives a status or a body answers.
function makers.functions(hook, functions, conf)
  return { [hook] = function(context)
    for _, f in ipairs(functions) do
      local code, body = f(conf, context)
      if code ~= nil or body ~= nil then return entry.core_exit(code, body) end
    end
  end }
end

-- APISIX: functions before a plugin answer by core.response.exit alone.
function makers.before(hook, functions, conf)
  return { [hook] = function(context)
    for _, f in ipairs(functions) do f(conf, context) end
  end }
end

-- Kong: a text that gives a function was its beginning, and the function is what runs from then on.
function makers.texts(hook, chunks)
  local run, is_first = {}, {}
  for at, chunk in ipairs(chunks) do run[at], is_first[at] = chunk, true end
  return { [hook] = function()
    for at = 1, #run do
      local f = run[at]
      if is_first[at] then
        is_first[at] = false
        local made = f()
        if type(made) == "function" then
          run[at] = made
          made()
        end
      else
        f()
      end
    end
  end }
end

-- APISIX: answers of the gateway pass through the functions.
function makers.answers(_, chunks)
  return { header_filter = function()
    if raw.origin() ~= "exit" then return end
    local code, body, headers = raw.status(), raw.made_body(), {}
    local as_table = json.decode(body)
    if type(as_table) == "table" then body = as_table end
    for _, chunk in ipairs(chunks) do code, body, headers = chunk(code, body, headers) end
    if code then raw.set_status(code) end
    for name, value in pairs(headers or {}) do raw.set_response_header(name, value) end
    if type(body) == "table" then
      local text, fault = json.encode(body)
      if not text then error("failed to encode data: " .. tostring(fault), 0) end
      body = text .. "\n"
    end
    raw.replace_body(body == nil and "" or tostring(body))
  end }
end

-- APISIX's script of a route.
function makers.object(_, objects)
  local made = {}
  if objects[1].rewrite then error("rewrite: a script of a route begins with access", 0) end
  for _, hook in ipairs(hooks) do
    local f = objects[1][hook]
    if type(f) == "function" then made[hook] = function(context) f(context) end end
  end
  return made
end

-- A plugin for APISIX.
function makers.module(_, modules, conf)
  local module, made = modules[1], {}
  if type(module.schema) == "table" then
    local ok, fault = entry.core.schema.check(module.schema, conf)
    if not ok then error(fault, 0) end
  end
  if type(module.check_schema) == "function" then
    local ok, fault = module.check_schema(conf, 0)
    if not ok then error(tostring(fault or "check_schema refuses it"), 0) end
  end
  for _, hook in ipairs(hooks) do
    local f = module[hook]
    if type(f) == "function" then
      made[hook] = function(context)
        local code, body = f(conf, context)
        if (code ~= nil or body ~= nil) and raw.may_wait() then return entry.core_exit(code, body) end
      end
    end
  end
  return made
end

function entry.encode(value) return raw.json_encode(value) end

function entry.load(form, hook, texts, conf)
  local value = conf ~= "" and json.decode(conf) or {}
  local made = makers[form](hook, texts, value)
  for name, f in pairs(made) do made[name] = entry.guarded(f) end
  return made
end
entry.load = entry.guarded(entry.load)
entry.check = entry.guarded(entry.check)

-- A template's expression over tables of a request.
local function view(read, kind)
  return setmetatable({}, { __index = function(_, name) return read(kind, tostring(name)) end })
end
function entry.template(f, read, shared)
  local value = entry.guarded(f)(view(read, 0), view(read, 1), view(read, 2), shared or {})
  if value == nil then return nil end
  return tostring(value)
end
