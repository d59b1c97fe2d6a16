-- Globals of scripts: Lua's own, without what reaches the system. An error that ends a call is caught by nobody.
local raw, entry = ...
local error, getmetatable, ipairs, load, next, pairs, pcall, rawget, rawset, select, setmetatable, tostring, type, unpack =
  error, getmetatable, ipairs, load, next, pairs, pcall, rawget, rawset, select, setmetatable, tostring, type, unpack
local create, resume, yield = coroutine.create, coroutine.resume, coroutine.yield
local native_find, sub, byte = string.find, string.sub, string.byte
local is_ending, spend = raw.is_ending, raw.spend
local native_os, native_io = os, io

local shared = {
  assert = assert, error = error, getmetatable = getmetatable, ipairs = ipairs, next = next, pairs = pairs,
  rawequal = rawequal, rawget = rawget, rawlen = rawlen, rawset = rawset, select = select, setmetatable = setmetatable,
  tonumber = tonumber, tostring = tostring, type = type, unpack = unpack, math = math, bit = bit, _VERSION = _VERSION,
}
entry.shared = shared

-- A name under which there is nothing: whoever uses it is told so.
local function absent(path, why)
  local function fail(_, key)
    local name = key == nil and path or path .. "." .. tostring(key)
    error(name .. " is not available in scripts" .. (why or ""), 2)
  end
  return setmetatable({}, { __index = fail, __newindex = fail, __call = function() fail() end })
end
entry.absent = absent

-- Fails for a missing key of a table of functions.
local function strict(path, table, computed)
  return setmetatable(table, {
    __index = function(_, key)
      local get = computed and computed[key]
      if get then return get() end
      error(path .. "." .. tostring(key) .. " is not available in scripts", 2)
    end,
  })
end
entry.strict = strict

local function passed(ok, ...)
  if not ok and is_ending() then error((...), 0) end
  return ok, ...
end

function shared.pcall(f, ...) return passed(pcall(f, ...)) end
-- The handler is called behind the error and not within: while an error of the hook that counts instructions is handled, no
-- hook is called, and a handler that loops would never end.
local function handled(handler, ok, ...)
  if ok then return ok, ... end
  if is_ending() then error((...), 0) end
  return false, handler(...)
end
function shared.xpcall(f, handler, ...) return handled(handler, pcall(f, ...)) end

-- Coroutines. A wait inside of one passes through to the gateway.
local WAIT = {}
local function going(thread, ok, mark, ...)
  if ok and mark == WAIT then return going(thread, resume(thread, yield(WAIT, ...))) end
  if not ok and is_ending() then error(mark, 0) end
  return ok, mark, ...
end
local function results(ok, ...)
  if not ok then error((...), 0) end
  return ...
end
-- A function with a pcall at its bottom: an error that leaves a hook ends there, and is raised anew outside of the hook.
local function guarded(f)
  return function(...) return results(pcall(f, ...)) end
end
entry.guarded = guarded
shared.coroutine = {
  create = function(f) return create(guarded(f)) end, yield = yield, status = coroutine.status, running = coroutine.running,
  isyieldable = coroutine.isyieldable,
  resume = function(thread, ...) return going(thread, resume(thread, ...)) end,
  wrap = function(f)
    local thread = create(guarded(f))
    return function(...) return results(going(thread, resume(thread, ...))) end
  end,
}

function entry.wait(what, wish)
  if not raw.may_wait() then
    error("API disabled in the context of " .. raw.phase() .. ": " .. what .. " waits", 3)
  end
  return yield(WAIT, wish)
end

-- Functions that work on many bytes at a time spend instructions for them: one for each 32 bytes.
local function charge(bytes)
  if bytes > 1024 then spend(bytes / 32) end
end
local function paid(result, ...)
  if type(result) == "string" then charge(#result) end
  return result, ...
end
local function by_result(f)
  return function(...) return paid(f(...)) end
end
local function by_argument(f, place, weight)
  return function(...)
    local text = select(place, ...)
    if type(text) == "string" then charge(#text * weight) end
    return f(...)
  end
end
for _, name in ipairs({ "encode_base64", "encode_base64url", "decode_base64", "decode_base64url", "escape_uri", "unescape_uri",
  "hex", "crc32" }) do
  raw[name] = by_argument(raw[name], 1, 1)
end
raw.digest, raw.hmac = by_argument(raw.digest, 2, 1), by_argument(raw.hmac, 3, 1)
raw.json_encode, raw.json_decode = by_result(raw.json_encode), by_argument(raw.json_decode, 1, 8)
for _, name in ipairs({ "log", "sign", "verify_signature", "check_schema" }) do
  local f = raw[name]
  raw[name] = function(...) spend(100) return f(...) end
end

-- Patterns are matched by the gateway: their steps count for the budget.
local match = raw.match
local string_library = {}
for name, f in pairs(string) do string_library[name] = f end
string_library.dump = nil
for _, name in ipairs({ "lower", "upper", "reverse" }) do string_library[name] = by_argument(string[name], 1, 1) end
for _, name in ipairs({ "sub", "format" }) do string_library[name] = by_result(string[name]) end
function string_library.rep(text, count, separator)
  local times = tonumber(count)
  if not times then return string.rep(text, count, separator) end
  if not (times > 0) then times = 0 end
  charge(times * (#tostring(text) + #tostring(separator or "") + 1))
  return string.rep(text, times, separator)
end
local function find_plain(text, pattern, init)
  local length, searched = #tostring(text), #tostring(pattern)
  if searched > 64 then charge(length * searched / 8) else charge(length) end
  return native_find(text, pattern, init, true)
end
local function start(text, init)
  init = init or 1
  if init < 0 then init = #text + init + 1 end
  return init < 1 and 1 or init
end
function string_library.find(text, pattern, init, plain)
  if plain or not native_find(pattern, "[%^%$%*%+%?%.%(%)%[%]%%%-]") then
    return find_plain(text, pattern, init)
  end
  return match(text, pattern, start(tostring(text), init))
end
local function captures(text, from, to, first, ...)
  if not from then return nil end
  if first == nil then return sub(text, from, to) end
  return first, ...
end
function string_library.match(text, pattern, init)
  text = tostring(text)
  return captures(text, match(text, pattern, start(text, init)))
end
function string_library.gmatch(text, pattern)
  text = tostring(text)
  local at = 1
  local function step(from, to, ...)
    if not from then at = #text + 2 return nil end
    at = to < from and from + 1 or to + 1
    return captures(text, from, to, ...)
  end
  if byte(pattern, 1) == 94 then pattern = "%" .. pattern end
  return function()
    if at > #text + 1 then return nil end
    return step(match(text, pattern, at))
  end
end
local function replacement(with, whole, first, ...)
  local kind, key = type(with), first == nil and whole or first
  local value
  if kind == "function" then
    if first == nil then value = with(whole) else value = with(first, ...) end
  elseif kind == "table" then
    value = with[key]
  else
    return raw.substitute(tostring(with), whole, first, ...)
  end
  if not value then return whole end
  kind = type(value)
  if kind ~= "string" and kind ~= "number" then error("invalid replacement value (a " .. kind .. ")", 3) end
  return value
end
function string_library.gsub(text, pattern, with, most)
  text = tostring(text)
  local parts, count, at, anchored = {}, 0, 1, byte(pattern, 1) == 94
  local function step(from, to, ...)
    if not from then return false end
    parts[#parts + 1] = sub(text, at, from - 1)
    parts[#parts + 1] = replacement(with, sub(text, from, to), ...)
    count = count + 1
    if to < from then
      parts[#parts + 1] = sub(text, from, from)
      at = from + 1
    else
      at = to + 1
    end
    return true
  end
  while (not most or count < most) and at <= #text + 1 do
    if not step(match(text, pattern, at)) or anchored then break end
  end
  parts[#parts + 1] = sub(text, at)
  return table.concat(parts), count
end
shared.string = string_library
local of_strings = getmetatable("")
of_strings.__index = string_library
of_strings.__metatable = "string"

-- Tables.
local table_library = {}
for name, f in pairs(table) do table_library[name] = f end
local concat, insert, sort = table.concat, table.insert, table.sort
function table_library.concat(list, ...)
  if type(list) == "table" then charge(#list * 8) end
  return paid(concat(list, ...))
end
function table_library.insert(list, ...)
  if select("#", ...) > 1 and type(list) == "table" then charge(#list * 8) end
  return insert(list, ...)
end
-- With a comparison in Lua, all that sorting does is counted.
local function less(a, b) return a < b end
function table_library.sort(list, before) return sort(list, before or less) end
table_library.getn, table_library.foreach, table_library.foreachi = nil, nil, nil
function table_library.new() return {} end
function table_library.clear(t) for key in next, t do t[key] = nil end end
function table_library.nkeys(t) local n = 0 for _ in next, t do n = n + 1 end return n end
function table_library.isempty(t) return next(t) == nil end
function table_library.isarray(t) return next(t) == nil or #t > 0 end
function table_library.clone(t) local copy = {} for key, value in next, t do copy[key] = value end return copy end
shared.table = table_library

-- Text becomes code, compiled code does not.
local function compile(text, name, globals)
  if type(text) ~= "string" then return nil, "expected a text to compile" end
  charge(#text * 32)
  return load(text, name or "=text", "t", globals or entry.globals())
end
shared.loadstring = function(text, name) return compile(text, name) end
shared.load = function(text, name, _, globals)
  if type(text) == "function" then
    local parts = {}
    for part in text do
      if part == "" then break end
      parts[#parts + 1] = part
    end
    text = table.concat(parts)
  end
  return compile(text, name, globals)
end

-- The system.
local environment = " unless the setting scripts.allow has environment"
local files, processes = " unless the setting scripts.allow has files", " unless the setting scripts.allow has processes"
local function denied(name, why) return function() error(name .. " is not available in scripts" .. why, 2) end end
shared.os = strict("os", {
  time = native_os.time, date = native_os.date, clock = native_os.clock, difftime = native_os.difftime,
  getenv = raw.allows_environment and native_os.getenv or denied("os.getenv", environment),
  remove = raw.allows_files and native_os.remove or denied("os.remove", files),
  rename = raw.allows_files and native_os.rename or denied("os.rename", files),
  tmpname = raw.allows_files and native_os.tmpname or denied("os.tmpname", files),
  execute = raw.allows_processes and native_os.execute or denied("os.execute", processes),
  exit = denied("os.exit", ""),
})
if raw.allows_files then
  shared.io = strict("io", {
    open = native_io.open, lines = native_io.lines, type = native_io.type,
    popen = raw.allows_processes and native_io.popen or denied("io.popen", processes),
  })
  shared.loadfile, shared.dofile = loadfile, dofile
elseif raw.allows_processes then
  shared.io = strict("io", { popen = native_io.popen })
else
  shared.io = absent("io", files)
  shared.loadfile, shared.dofile = denied("loadfile", files), denied("dofile", files)
end
for _, name in ipairs({ "debug", "ffi", "jit", "package" }) do shared[name] = absent(name) end
for _, name in ipairs({ "getfenv", "setfenv", "module", "newproxy" }) do shared[name] = denied(name, "") end
function shared.collectgarbage(what)
  if what ~= "count" then error("collectgarbage is not available in scripts, but for count", 2) end
  return collectgarbage("count")
end
math.randomseed(byte(raw.random(1)) * 65536 + byte(raw.random(1)) * 256 + byte(raw.random(1)))

-- Modules: those of the gateway, and the files of the folders that settings name.
local modules, loading = {}, {}
entry.modules = modules
function shared.require(name)
  local known = modules[name]
  if known ~= nil then return known end
  local text, path = raw.find_module(name)
  if not text then error("module '" .. tostring(name) .. "' is not available in scripts", 2) end
  if loading[name] then error("module '" .. name .. "' requires itself", 2) end
  local chunk, fault = compile(text, "=" .. path)
  if not chunk then error(fault, 2) end
  loading[name] = true
  local ok, made = pcall(chunk, name)
  loading[name] = nil
  if not ok then error(made, 0) end
  if made == nil then made = true end
  modules[name] = made
  return made
end
modules.string, modules.table, modules.math, modules.bit = shared.string, shared.table, shared.math, shared.bit
modules.os, modules.coroutine = shared.os, shared.coroutine
for _, name in ipairs({ "new", "clear", "nkeys", "isempty", "isarray", "clone" }) do
  modules["table." .. name] = table_library[name]
end

function entry.globals()
  local globals = setmetatable({}, { __index = shared })
  globals._G = globals
  return globals
end

function shared.print(...)
  local parts = {}
  for at = 1, select("#", ...) do parts[at] = tostring((select(at, ...))) end
  raw.log(6, table.concat(parts, "\t"))
end
