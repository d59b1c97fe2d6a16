-- APISIX's core.request.
local raw, entry = ...
local strict, modules, core, json = entry.strict, entry.modules, entry.core, entry.json

-- The arguments of functions whose first one, the context, may be left out.
local function without_context(first, ...)
  if type(first) == "table" and getmetatable(first) == entry.context_type then return ... end
  return first, ...
end
local function var(name) return function() return raw.var(name) end end

local function get_body(most, context)
  entry.read_body()
  local body = raw.body()
  if body == nil or body == "" then return nil end
  if type(most) == "number" and #body > most then
    return nil, "request size " .. #body .. " is greater than the maximum size " .. most .. " allowed"
  end
  return body
end

core.request = strict("core.request", {
  header = function(_, name) return raw.header(name) end,
  headers = function() return entry.request_headers() end,
  set_header = function(...) raw.set_header(without_context(...)) end,
  add_header = function(...) raw.add_header(without_context(...)) end,
  get_uri_args = function() return raw.args() end,
  set_uri_args = function(...)
    local args = without_context(...)
    raw.set_query(type(args) == "table" and entry.encode_args(args) or tostring(args))
  end,
  get_post_args = function()
    entry.read_body()
    return entry.decode_args(raw.body() or "")
  end,
  get_body = get_body,
  get_json_request_body_table = function()
    local body, fault = get_body()
    if not body then return nil, { message = "could not get body: " .. (fault or "request body is empty") } end
    local value
    value, fault = json.decode(body)
    if value == nil then return nil, { message = "could not parse JSON request body: " .. fault } end
    return value
  end,
  get_method = var("request_method"), get_ip = var("remote_addr"), get_remote_client_ip = var("remote_addr"),
  get_remote_client_port = function() return tonumber(raw.var("remote_port")) end,
  get_host = var("host"), get_scheme = var("scheme"),
  get_port = function() return tonumber(raw.var("server_port")) end,
  get_path = var("uri"),
  get_http_version = function() return entry.ngx.req.http_version() end,
})
modules["apisix.core.request"] = core.request
