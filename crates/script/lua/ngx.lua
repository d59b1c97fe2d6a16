-- The API of OpenResty.
local raw, entry = ...
local shared, strict, modules, wait = entry.shared, entry.strict, entry.modules, entry.wait
local concat = table.concat
local find = shared.string.find

-- Variables of the request. What a script sets under other names is the request's own.
local set_var = {}
local var = setmetatable({}, {
  __index = function(_, name)
    local own = rawget(raw.context(), "_var")
    local value = own and own[name]
    if value ~= nil then return value end
    if name == "upstream_uri" then return raw.upstream_target() end
    return raw.var(name)
  end,
  __newindex = function(_, name, value)
    local set = set_var[name]
    if set then return set(value) end
    local context = raw.context()
    local own = rawget(context, "_var")
    if not own then
      own = {}
      rawset(context, "_var", own)
    end
    own[name] = value
  end,
})
entry.var = var
function set_var.upstream_uri(value) raw.set_upstream_target(value) end
function set_var.args(value) raw.set_query(value or "") end
function set_var.upstream_host(value) raw.set_header("Host", value) end

function entry.vars(read) return setmetatable({}, { __index = function(_, name) return read(name) end }) end

-- Fields whose names may be written with _ and in any case.
local folded = { __index = function(table, name)
  if type(name) ~= "string" then return nil end
  local lower = name:lower():gsub("_", "-")
  return rawget(table, lower)
end }
entry.folded = folded

local function escape(text) return raw.escape_uri(tostring(text)) end
local function encode_args(args)
  local names, parts = {}, {}
  for name in pairs(args) do names[#names + 1] = name end
  table.sort(names, function(a, b) return tostring(a) < tostring(b) end)
  for _, name in ipairs(names) do
    local values = args[name]
    if type(values) ~= "table" then values = { values } end
    for _, value in ipairs(values) do
      if value == true then
        parts[#parts + 1] = escape(name)
      elseif value ~= false then
        parts[#parts + 1] = escape(name) .. "=" .. escape(value)
      end
    end
  end
  return concat(parts, "&")
end
local function decode_args(text)
  local args = {}
  for part in text:gmatch("[^&]+") do
    local at = find(part, "=", 1, true)
    local name = raw.unescape_uri(at and part:sub(1, at - 1) or part)
    local value = true
    if at then value = raw.unescape_uri(part:sub(at + 1)) end
    local known = args[name]
    if known == nil then
      args[name] = value
    elseif type(known) == "table" then
      known[#known + 1] = value
    else
      args[name] = { known, value }
    end
  end
  return args
end
entry.encode_args, entry.decode_args = encode_args, decode_args

local function read_body()
  if not raw.has_body() then wait("reading a body", { wish = "body" }) end
end
entry.read_body = read_body

local function body()
  local text = raw.body()
  if text == "" then return nil end
  return text
end
local function request_headers() return setmetatable(raw.headers(), folded) end
entry.request_headers = request_headers

local req = strict("ngx.req", {
  get_headers = function() return request_headers() end,
  set_header = raw.set_header,
  clear_header = function(name) raw.set_header(name, nil) end,
  get_uri_args = function() return raw.args() end,
  set_uri_args = function(args) raw.set_query(type(args) == "table" and encode_args(args) or tostring(args)) end,
  get_method = function() return raw.var("request_method") end,
  set_method = function(method)
    local name = type(method) == "number" and entry.methods[method] or method
    raw.set_method(name)
  end,
  http_version = function() return tonumber((raw.var("server_protocol") or ""):match("%d+%.%d+")) end,
  start_time = raw.request_start,
  is_internal = function() return false end,
  read_body = read_body,
  get_body_data = body,
  get_body_file = function() return nil end,
  set_body_data = raw.set_body,
  discard_body = function() raw.set_body("") end,
  get_post_args = function() return decode_args(body() or "") end,
  set_uri = function(uri)
    local query = raw.var("args")
    local path = raw.escape_uri(uri, 0):gsub("[?#]", { ["?"] = "%3F", ["#"] = "%23" })
    raw.set_upstream_target(query and query ~= "" and path .. "?" .. query or path)
  end,
})

local header = setmetatable({}, {
  __index = function(_, name) return raw.response_header(name) end,
  __newindex = function(_, name, value) raw.set_response_header(name, value) end,
})

local function exit(status)
  raw.begin_exit(status)
  error("the script has answered", 0)
end
entry.exit = exit

-- Regular expressions.
local re = strict("ngx.re", {})
function re.match(text, pattern, options, context, into)
  local from = context and context.pos or 1
  local _, to, groups = raw.regex(text, pattern, options, from)
  if not groups then return nil end
  if context then context.pos = to + 1 end
  if into then
    for key in pairs(into) do into[key] = nil end
    for key, value in pairs(groups) do into[key] = value end
    return into
  end
  return groups
end
function re.find(text, pattern, options, context, group)
  local from, to, groups = raw.regex(text, pattern, options, context and context.pos or 1)
  if not groups then return nil end
  if group and group > 0 then error("ngx.re.find of a group is not available in scripts", 2) end
  if context then context.pos = to + 1 end
  return from, to
end
function re.gmatch(text, pattern, options)
  local at = 1
  return function()
    local from, to, groups = raw.regex(text, pattern, options, at)
    if not groups then return nil end
    at = to < from and from + 1 or to + 1
    return groups
  end
end
local function substitute(text, pattern, with, options, most)
  local parts, count, at = {}, 0, 1
  while count < most and at <= #text + 1 do
    local from, to, groups = raw.regex(text, pattern, options, at)
    if not groups then break end
    parts[#parts + 1] = text:sub(at, from - 1)
    if type(with) == "function" then
      parts[#parts + 1] = tostring(with(groups) or "")
    else
      parts[#parts + 1] = (with:gsub("%$([%${]?)(%w*)(}?)", function(mark, name, close)
        if mark == "$" then return "$" .. name .. close end
        if mark ~= "{" then name = name:match("^%d+") or name end
        local value = groups[tonumber(name) or name] or ""
        return value .. (mark == "{" and "" or close)
      end))
    end
    count = count + 1
    if to < from then
      parts[#parts + 1] = text:sub(from, from)
      at = from + 1
    else
      at = to + 1
    end
  end
  parts[#parts + 1] = text:sub(at)
  return concat(parts), count
end
function re.gsub(text, pattern, with, options) return substitute(text, pattern, with, options, math.huge) end
function re.sub(text, pattern, with, options) return substitute(text, pattern, with, options, 1) end
local function split(text, pattern, options, _, most)
  local parts, at = {}, 1
  while not most or most <= 0 or #parts + 1 < most do
    local from, to, groups = raw.regex(text, pattern, options, at)
    if not groups or to < from then break end
    parts[#parts + 1] = text:sub(at, from - 1)
    at = to + 1
  end
  parts[#parts + 1] = text:sub(at)
  return parts
end
modules["ngx.re"] = strict("ngx.re", { split = split })

local levels = { STDERR = 0, EMERG = 1, ALERT = 2, CRIT = 3, ERR = 4, WARN = 5, NOTICE = 6, INFO = 7, DEBUG = 8 }
local statuses = {
  OK = 200, CREATED = 201, ACCEPTED = 202, NO_CONTENT = 204, PARTIAL_CONTENT = 206, SPECIAL_RESPONSE = 300,
  MOVED_PERMANENTLY = 301, MOVED_TEMPORARILY = 302, SEE_OTHER = 303, NOT_MODIFIED = 304, TEMPORARY_REDIRECT = 307,
  PERMANENT_REDIRECT = 308, BAD_REQUEST = 400, UNAUTHORIZED = 401, PAYMENT_REQUIRED = 402, FORBIDDEN = 403,
  NOT_FOUND = 404, NOT_ALLOWED = 405, NOT_ACCEPTABLE = 406, REQUEST_TIMEOUT = 408, CONFLICT = 409, GONE = 410,
  UPGRADE_REQUIRED = 426, TOO_MANY_REQUESTS = 429, CLOSE = 444, ILLEGAL = 451, INTERNAL_SERVER_ERROR = 500,
  METHOD_NOT_IMPLEMENTED = 501, NOT_IMPLEMENTED = 501, BAD_GATEWAY = 502, SERVICE_UNAVAILABLE = 503,
  GATEWAY_TIMEOUT = 504, VERSION_NOT_SUPPORTED = 505, INSUFFICIENT_STORAGE = 507,
}
local methods = { GET = 2, HEAD = 4, POST = 8, PUT = 16, DELETE = 32, MKCOL = 64, COPY = 128, MOVE = 256, OPTIONS = 512,
  PROPFIND = 1024, LOCK = 4096, UNLOCK = 8192, PATCH = 16384, TRACE = 32768 }
entry.methods = {}
for name, number in pairs(methods) do entry.methods[number] = name end

local function join(...)
  local parts = {}
  for at = 1, select("#", ...) do parts[at] = tostring((select(at, ...))) end
  return concat(parts)
end
entry.join = join

local function http_time(seconds) return os.date("!%a, %d %b %Y %H:%M:%S GMT", seconds) end

local ngx
local computed = {
  status = raw.status,
  ctx = raw.context,
  headers_sent = function() local phase = raw.phase() return phase == "body_filter" or phase == "log" end,
}
ngx = {
  var = var, req = req, header = header, re = re, null = raw.null, exit = exit,
  OK = 0, ERROR = -1, AGAIN = -2, DONE = -4, DECLINED = -5,
  print = raw.print,
  say = function(...) raw.print(...) raw.print("\n") end,
  flush = function() return 1 end,
  eof = function() exit(nil) end,
  send_headers = function() return 1 end,
  redirect = function(uri, status)
    raw.set_response_header("Location", uri)
    exit(status or 302)
  end,
  resp = strict("ngx.resp", {
    get_headers = function() return setmetatable(raw.response_headers(), folded) end,
    add_header = raw.add_response_header,
  }),
  log = function(level, ...) raw.log(level, join(...)) end,
  now = raw.now,
  time = function() return math.floor(raw.now()) end,
  update_time = function() end,
  today = function() return os.date("%Y-%m-%d") end,
  localtime = function() return os.date("%Y-%m-%d %H:%M:%S") end,
  utctime = function() return os.date("!%Y-%m-%d %H:%M:%S") end,
  http_time = http_time,
  cookie_time = function(seconds) return os.date("!%a, %d-%b-%y %H:%M:%S GMT", seconds) end,
  sleep = function(seconds) wait("ngx.sleep", { wish = "sleep", seconds = tonumber(seconds) }) end,
  get_phase = raw.phase,
  encode_base64 = function(text, no_padding) return raw.encode_base64(tostring(text), no_padding) end,
  decode_base64 = raw.decode_base64,
  escape_uri = function(text, kind) return raw.escape_uri(tostring(text), kind) end,
  unescape_uri = raw.unescape_uri,
  encode_args = encode_args,
  decode_args = decode_args,
  md5 = function(text) return raw.hex(raw.digest("md5", tostring(text))) end,
  md5_bin = function(text) return raw.digest("md5", tostring(text)) end,
  sha1_bin = function(text) return raw.digest("sha1", tostring(text)) end,
  hmac_sha1 = function(key, text) return raw.hmac("sha1", key, text) end,
  crc32_long = raw.crc32,
  crc32_short = raw.crc32,
  is_subrequest = false,
  worker = strict("ngx.worker", { pid = raw.pid, exiting = function() return false end }),
  config = strict("ngx.config", { subsystem = "http", debug = false }),
  arg = setmetatable({}, {
    __index = function(_, at)
      if at == 1 then return raw.piece() end
      if at == 2 then return raw.is_last() end
    end,
    __newindex = function(_, at, value)
      if at == 1 then return raw.set_piece(value) end
      error("ngx.arg[" .. tostring(at) .. "] cannot be set in scripts", 2)
    end,
  }),
}
for name, number in pairs(levels) do ngx[name] = number end
for name, number in pairs(statuses) do ngx["HTTP_" .. name] = number end
for name, number in pairs(methods) do ngx["HTTP_" .. name] = number end
strict("ngx", ngx, computed)
getmetatable(ngx).__newindex = function(table, name, value)
  if name == "status" then return raw.set_status(value) end
  error("ngx." .. tostring(name) .. " cannot be set in scripts", 2)
end
shared.ngx, entry.ngx = ngx, ngx
modules.ngx = ngx
modules["ngx.base64"] = strict("ngx.base64", { encode_base64url = raw.encode_base64url, decode_base64url = raw.decode_base64url })

-- JSON.
local encode, decode = raw.json_encode, raw.json_decode
local function safely(f)
  return function(...)
    local ok, value = shared.pcall(f, ...)
    if ok then return value end
    return nil, (tostring(value):gsub("\n.*", ""))
  end
end
local cjson = {
  encode = function(value) return encode(value) end,
  decode = function(text) return decode(text) end,
  null = raw.null, array_mt = raw.array_mt, empty_array_mt = raw.array_mt,
  empty_array = setmetatable({}, raw.array_mt),
  _NAME = "cjson",
  encode_empty_table_as_object = function() end,
  decode_array_with_array_mt = function() end,
  encode_sparse_array = function() end,
  encode_number_precision = function() end,
}
cjson.new = function() return cjson end
local safe = {}
for name, value in pairs(cjson) do safe[name] = value end
safe.encode, safe.decode = safely(encode), safely(decode)
safe.new = function() return safe end
modules.cjson, modules["cjson.safe"] = strict("cjson", cjson), strict("cjson.safe", safe)
entry.json = safe
shared.cjson = modules.cjson

-- Small libraries of OpenResty.
modules["resty.string"] = strict("resty.string", {
  to_hex = raw.hex,
  atoi = tonumber,
})
local function hasher(name, algorithm)
  local Hash = {}
  Hash.__index = Hash
  function Hash:update(text) self.text = self.text .. text return true end
  function Hash:final() return raw.digest(algorithm, self.text) end
  function Hash:reset() self.text = "" return true end
  modules[name] = strict(name, { new = function() return setmetatable({ text = "" }, Hash) end })
end
hasher("resty.md5", "md5")
hasher("resty.sha1", "sha1")
hasher("resty.sha256", "sha256")
hasher("resty.sha512", "sha512")
modules["resty.random"] = strict("resty.random", { bytes = function(length) return raw.random(length) end })
local function uuid()
  local digits = raw.hex(raw.random(16))
  local variant = ("89ab"):sub(1 + digits:byte(17) % 4, 1 + digits:byte(17) % 4)
  return digits:sub(1, 8) .. "-" .. digits:sub(9, 12) .. "-4" .. digits:sub(14, 16) .. "-" .. variant .. digits:sub(18, 20)
    .. "-" .. digits:sub(21)
end
entry.uuid = uuid
modules["resty.jit-uuid"] = setmetatable({ generate_v4 = uuid, seed = function() end }, { __call = uuid })
modules.socket = strict("socket", { gettime = raw.now })
