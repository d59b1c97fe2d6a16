-- APISIX's context and core library, without core.request.
local raw, entry = ...
local shared, strict, modules, ngx = entry.shared, entry.strict, entry.modules, entry.ngx
local join, json = entry.join, entry.json

-- The context of a request: what scripts put there, and what APISIX has there.
local of_context = {
  var = function() return entry.var end,
  api_ctx = function(context) return context end,
  consumer = function() return raw.consumer() end,
  headers = function() return entry.request_headers() end,
}
for _, name in ipairs({ "consumer_name", "consumer_group_id", "route_id", "route_name", "service_id", "service_name" }) do
  of_context[name] = function() return raw.var(name) end
end
for _, name in ipairs({ "router_matches", "matched_route", "matched_upstream", "upstream_conf", "plugins" }) do
  of_context[name] = function() error("ctx." .. name .. " is not available in scripts", 3) end
end
local context_type = {
  __index = function(context, name)
    local get = of_context[name]
    return get and get(context)
  end,
}
entry.context_type = context_type
function entry.context() return setmetatable({}, context_type) end

local core = { version = strict("core.version", { VERSION = "3.0.0" }) }

local levels = { emerg = 1, alert = 2, crit = 3, error = 4, warn = 5, notice = 6, info = 7, debug = 8 }
core.log = strict("core.log", {
  delay_exec = function(f, ...) return f(...) end,
})
for name, level in pairs(levels) do
  core.log[name] = function(...) raw.log(level, join(...)) end
end

-- JSON: a table that is no JSON is one of these texts.
local function encode(value) return json.encode(value) end
core.json = strict("core.json", {
  encode = encode, stably_encode = encode, decode = json.decode,
  null = raw.null, array_mt = raw.array_mt, empty_array = json.empty_array,
  delay_encode = function(value)
    return setmetatable({}, { __tostring = function() return encode(value) or "" end })
  end,
})

local string_library = {}
for name, f in pairs(shared.string) do string_library[name] = f end
core.string = strict("core.string", string_library)
function core.string.find(text, pattern, from) return shared.string.find(text, pattern, from, true) end
function core.string.has_prefix(text, prefix) return text:sub(1, #prefix) == prefix end
function core.string.has_suffix(text, suffix) return suffix == "" or text:sub(-#suffix) == suffix end
function core.string.rfind_char(text, char, from)
  for at = from or #text, 1, -1 do
    if text:sub(at, at) == char then return at end
  end
end
function core.string.hex_encode(text) return raw.hex(text) end

local function deepcopy(value, depth)
  if type(value) ~= "table" then return value end
  if depth > 100 then error("a table is nested too deeply to copy") end
  local copy = {}
  for key, item in pairs(value) do copy[deepcopy(key, depth + 1)] = deepcopy(item, depth + 1) end
  return setmetatable(copy, getmetatable(value))
end
local table_library = {}
for name, f in pairs(shared.table) do table_library[name] = f end
core.table = strict("core.table", table_library)
function core.table.deepcopy(value) return deepcopy(value, 0) end
function core.table.insert_tail(list, ...)
  for at = 1, select("#", ...) do list[#list + 1] = (select(at, ...)) end
  return #list
end
function core.table.set(list, ...)
  for at = 1, select("#", ...) do list[at] = (select(at, ...)) end
  return select("#", ...)
end
function core.table.array_find(list, value)
  for at, item in ipairs(list) do
    if item == value then return at end
  end
end
function core.table.merge(into, from)
  for key, value in pairs(from) do
    if type(value) == "table" and type(into[key]) == "table" then
      core.table.merge(into[key], value)
    else
      into[key] = value
    end
  end
  return into
end
function core.table.try_read_attr(value, ...)
  for at = 1, select("#", ...) do
    if type(value) ~= "table" then return nil end
    value = value[(select(at, ...))]
  end
  return value
end
function core.table.keys(value)
  local keys = {}
  for key in pairs(value) do keys[#keys + 1] = key end
  return keys
end

-- Answers: a table is sent as JSON and a line end.
local function exit(code, ...)
  local values, from = { ... }, 1
  local count = select("#", ...)
  if code and type(code) ~= "number" then
    values, count, code = { code, ... }, count + 1, nil
  end
  if code then raw.set_status(code) end
  for at = from, count do
    local value = values[at]
    if type(value) == "table" then
      local text, fault = encode(value)
      if not text then error("failed to encode data: " .. tostring(fault), 2) end
      raw.print(text, "\n")
    elseif value ~= nil then
      raw.print(value)
    end
  end
  if code then entry.exit(code) end
end
local function set_header(set)
  return function(first, ...)
    if type(first) == "table" then
      for name, value in pairs(first) do set(name, value) end
      return
    end
    local values = { first, ... }
    for at = 1, math.max(select("#", ...) + 1, 2), 2 do set(values[at], values[at + 1]) end
  end
end
core.response = strict("core.response", {
  exit = exit,
  say = function(...) exit(nil, ...) end,
  set_header = set_header(raw.set_response_header),
  add_header = set_header(raw.add_response_header),
  clear_header_as_body_modified = function()
    for _, name in ipairs({ "Content-Length", "Content-Encoding", "Last-Modified", "ETag" }) do
      raw.set_response_header(name, nil)
    end
  end,
  get_upstream_status = function(context) return tonumber((context.var.upstream_status or ""):sub(-3)) end,
  hold_body_chunk = function(context)
    local held = rawget(context, "_held_body")
    if not held then
      held = {}
      rawset(context, "_held_body", held)
    end
    held[#held + 1] = raw.piece()
    if raw.is_last() then
      rawset(context, "_held_body", nil)
      return table.concat(held)
    end
    raw.set_piece("")
  end,
})
entry.core_exit = exit

core.ctx = strict("core.ctx", {})
core.time = strict("core.time", { now = raw.now })
core.utils = strict("core.utils", {
  uuid = entry.uuid,
  split_uri = function(uri) return modules["ngx.re"].split(uri, "/") end,
  get_seed_from_urandom = function() return raw.random(4):byte(1) end,
})
-- A cache without bounds of time: the least recently made entries go.
core.lrucache = strict("core.lrucache", {
  new = function(options)
    local entries, order, most = {}, {}, options and options.count or 256
    return function(key, version, make, ...)
      local known = entries[key]
      local now = raw.now()
      if known and known.version == version and (not options or not options.ttl or known.at + options.ttl > now) then
        return known.value
      end
      local value, fault = make(...)
      if value == nil then return nil, fault end
      if not known then
        order[#order + 1] = key
        if #order > most then entries[table.remove(order, 1)] = nil end
      end
      entries[key] = { value = value, version = version, at = now }
      return value
    end
  end,
})
-- What a configuration leaves out has the default of its schema.
local function fill(schema, conf)
  for name, field in pairs(type(schema.properties) == "table" and schema.properties or {}) do
    if conf[name] == nil and field.default ~= nil then conf[name] = deepcopy(field.default, 0) end
    if type(conf[name]) == "table" then fill(field, conf[name]) end
  end
end
core.schema = strict("core.schema", {
  TYPE_CONSUMER = 1, TYPE_METADATA = 2,
  check = function(schema, conf)
    if type(conf) == "table" then fill(schema, conf) end
    local fault = raw.check_schema(json.encode(schema), json.encode(conf))
    if fault then return false, fault end
    return true
  end,
})

entry.core = core
strict("core", core)
modules["apisix.core"] = core
modules["apisix.core.response"], modules["apisix.core.json"], modules["apisix.core.log"] = core.response, core.json, core.log
shared.core = core
