-- Kong's plugin development kit, without kong.service.
local raw, entry = ...
local shared, strict, modules, ngx = entry.shared, entry.strict, entry.modules, entry.ngx
local json, join, folded = entry.json, entry.join, entry.folded

local function var(name) return function() return raw.var(name) end end
local function number_of(name) return function() return tonumber(raw.var(name)) end end

local function port_of_host()
  local port = (raw.var("http_host") or ""):match(":(%d+)$")
  return tonumber(port) or (raw.var("scheme") == "https" and 443 or 80)
end

local function raw_body()
  entry.read_body()
  return raw.body() or ""
end

local function body_by_type(kind)
  kind = kind or raw.header("content-type") or ""
  local text = raw_body()
  if kind:find("application/json", 1, true) then
    local value, fault = json.decode(text)
    if value == nil then return nil, "invalid json body: " .. tostring(fault), "application/json" end
    return value, nil, "application/json"
  end
  if kind:find("application/x-www-form-urlencoded", 1, true) then
    return entry.decode_args(text), nil, "application/x-www-form-urlencoded"
  end
  if kind == "" then return nil, "missing content type" end
  return nil, "unsupported content type '" .. kind .. "'", kind
end

local function request_header(name)
  local value = raw.header(name)
  return value
end

local kong = {}
kong.request = strict("kong.request", {
  get_scheme = var("scheme"),
  get_host = var("host"),
  get_port = number_of("server_port"),
  get_forwarded_scheme = function() return raw.var("http_x_forwarded_proto") or raw.var("scheme") end,
  get_forwarded_host = var("host"),
  get_forwarded_port = port_of_host,
  get_forwarded_path = var("uri"),
  get_http_version = function() return ngx.req.http_version() end,
  get_method = var("request_method"),
  get_path = var("uri"),
  get_raw_path = function() return ((raw.var("real_request_uri") or ""):gsub("%?.*", "")) end,
  get_path_with_query = function()
    local query = raw.var("args")
    return query and query ~= "" and raw.var("uri") .. "?" .. query or raw.var("uri")
  end,
  get_raw_query = function() return raw.var("args") or "" end,
  get_query = function() return raw.args() end,
  get_query_arg = function(name)
    local value = raw.args()[name]
    if type(value) == "table" then return value[1] end
    return value
  end,
  get_header = request_header,
  get_headers = function() return entry.request_headers() end,
  get_raw_body = raw_body,
  get_body = body_by_type,
  get_start_time = function() return raw.request_start() * 1000 end,
})

-- Answers.
local function set_headers(headers)
  for name, value in pairs(headers or {}) do raw.set_response_header(name, value) end
end
local function exit(status, body, headers)
  if type(status) ~= "number" or status < 100 or status > 599 then
    error("code must be a number between 100 and 599", 2)
  end
  raw.set_status(status)
  if type(body) == "table" then
    raw.set_response_header("Content-Type", "application/json; charset=utf-8")
    local text, fault = json.encode(body)
    if not text then error("body encoding failed while flushing response: " .. tostring(fault), 2) end
    raw.print(text)
  elseif body ~= nil then
    raw.print(body)
  end
  set_headers(headers)
  entry.exit(status)
end
local texts = {
  [400] = "Bad request", [401] = "Unauthorized", [403] = "Forbidden", [404] = "Not found", [405] = "Method not allowed",
  [429] = "Too many requests", [500] = "An unexpected error occurred", [502] = "An invalid response was received from the upstream server",
  [503] = "The upstream server is currently unavailable", [504] = "The upstream server is timing out",
}
kong.response = strict("kong.response", {
  get_status = raw.status,
  get_header = function(name) return raw.response_header(name) end,
  get_headers = function() return setmetatable(raw.response_headers(), folded) end,
  get_source = raw.origin,
  set_status = raw.set_status,
  set_header = raw.set_response_header,
  add_header = raw.add_response_header,
  clear_header = function(name) raw.set_response_header(name, nil) end,
  set_headers = set_headers,
  exit = exit,
  error = function(status, message, headers)
    exit(status, { message = message or texts[status] or "Error" }, headers)
  end,
  get_raw_body = function()
    local context = raw.context()
    local held = rawget(context, "_held_body")
    if not held then
      held = {}
      rawset(context, "_held_body", held)
    end
    held[#held + 1] = raw.piece()
    if not raw.is_last() then
      raw.set_piece("")
      return nil
    end
    local text = table.concat(held)
    raw.set_piece(text)
    rawset(context, "_held_body", { text })
    return text
  end,
  set_raw_body = function(text)
    if raw.is_last() then raw.set_piece(text) else raw.set_piece("") end
  end,
})

kong.client = strict("kong.client", {
  get_ip = var("remote_addr"),
  get_forwarded_ip = var("remote_addr"),
  get_port = number_of("remote_port"),
  get_forwarded_port = number_of("remote_port"),
  get_protocol = var("scheme"),
  get_consumer = function() return raw.consumer() end,
  get_credential = function()
    local consumer = raw.consumer()
    return consumer and { id = consumer.credential_id, consumer_id = consumer.id }
  end,
})

-- What plugins keep for a request: `shared` is common, `plugin` is the script's own.
local function part(name)
  return function()
    local context = raw.context()
    local table = rawget(context, name)
    if not table then
      table = {}
      rawset(context, name, table)
    end
    return table
  end
end
kong.ctx = strict("kong.ctx", {}, { shared = part("_shared"), plugin = part("_plugin"), core = part("_core") })

local function named(id, name)
  local known = raw.var(id)
  return known and { id = known, name = raw.var(name) }
end
kong.router = strict("kong.router", {
  get_route = function() return named("route_id", "route_name") end,
  get_service = function() return named("service_id", "service_name") end,
})

local levels = { emerg = 1, alert = 2, crit = 3, err = 4, error = 4, warn = 5, notice = 6, info = 7, debug = 8 }
local log = {}
for name, level in pairs(levels) do
  log[name] = function(...) raw.log(level, join(...)) end
end
log.inspect = function(...) raw.log(8, join(...)) end
kong.log = setmetatable(log, {
  __call = function(_, ...) raw.log(6, join(...)) end,
  __index = function(_, name) error("kong.log." .. tostring(name) .. " is not available in scripts", 2) end,
})

kong.node = strict("kong.node", { get_hostname = var("hostname") })
kong.version, kong.version_num = "3.9.0", 3009000
kong.ip = strict("kong.ip", {})
kong.table = strict("kong.table", {
  new = function() return {} end,
  clear = shared.table.clear,
  merge = function(a, b)
    local merged = {}
    for key, value in pairs(a or {}) do merged[key] = value end
    for key, value in pairs(b or {}) do merged[key] = value end
    return merged
  end,
})
entry.kong = kong
shared.kong = kong

-- Kong's reader of tokens, which verifies their signatures.
local Jwt = {}
Jwt.__index = Jwt
function Jwt:verify_signature(key) return raw.verify_signature(self.header.alg, key, self.signed, self.signature) end
function Jwt:get_algorithm() return self.header.alg end
modules["kong.plugins.jwt.jwt_parser"] = strict("kong.plugins.jwt.jwt_parser", {
  new = function(_, text)
    local head, claims, signature = tostring(text):match("^([%w_-]+)%.([%w_-]+)%.([%w_-]*)$")
    if not head then return nil, "invalid JWT: expected three parts" end
    local header, payload = json.decode(raw.decode_base64url(head) or ""), json.decode(raw.decode_base64url(claims) or "")
    if type(header) ~= "table" or type(payload) ~= "table" then return nil, "invalid JSON" end
    return setmetatable({ token = text, header = header, claims = payload, signed = head .. "." .. claims,
      signature = raw.decode_base64url(signature) or "" }, Jwt)
  end,
})
