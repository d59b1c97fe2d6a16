-- Kong's kong.service: what the upstream receives, and what it has answered.
local raw, entry = ...
local strict, kong, json, folded = entry.strict, entry.kong, entry.json, entry.folded

local function target(path, query)
  local now = raw.upstream_target()
  local of_now = now:match("%?(.*)$")
  local path_now = now:gsub("%?.*", "")
  query = query or of_now
  raw.set_upstream_target((path or path_now) .. (query and query ~= "" and "?" .. query or ""))
end

local function set_raw_query(query)
  raw.set_query(query)
  target(nil, query)
end

local function set_headers(headers)
  for name, value in pairs(headers) do raw.set_header(name, value) end
end

kong.service = strict("kong.service", {})
kong.service.request = strict("kong.service.request", {
  set_header = function(name, value) raw.set_header(name, value) end,
  add_header = function(name, value) raw.add_header(name, value) end,
  clear_header = function(name) raw.set_header(name, nil) end,
  set_headers = set_headers,
  set_method = function(method) raw.set_method(method) end,
  set_path = function(path)
    if type(path) ~= "string" then error("path must be a string", 2) end
    if path:sub(1, 1) ~= "/" then error("path must start with /", 2) end
    target((raw.escape_uri(path, 0):gsub("[?#]", { ["?"] = "%3F", ["#"] = "%23" })))
  end,
  set_raw_query = set_raw_query,
  set_query = function(args) set_raw_query(entry.encode_args(args)) end,
  set_raw_body = function(body) raw.set_body(body) end,
  set_body = function(args, kind)
    kind = kind or raw.header("content-type") or ""
    if kind:find("application/json", 1, true) then
      local text, fault = json.encode(args)
      if not text then return nil, fault end
      raw.set_body(text)
    elseif kind:find("application/x-www-form-urlencoded", 1, true) then
      raw.set_body(entry.encode_args(args))
    else
      return nil, "unsupported content type " .. kind
    end
    raw.set_header("Content-Type", kind)
    return true
  end,
})
kong.service.response = strict("kong.service.response", {
  get_status = function() return tonumber((raw.var("upstream_status") or ""):sub(-3)) end,
  get_header = function(name) return raw.var("upstream_http_" .. name:lower():gsub("-", "_")) end,
  get_headers = function() return setmetatable(raw.response_headers(), folded) end,
  get_raw_body = function() return kong.response.get_raw_body() end,
  get_body = function() return json.decode(kong.response.get_raw_body() or "") end,
})
strict("kong", kong)
