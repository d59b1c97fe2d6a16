-- resty.http over the gateway's requests to services.
local raw, entry = ...
local modules, wait, strict, folded = entry.modules, entry.wait, entry.strict, entry.folded

local Http = {}
Http.__index = Http

local function split(uri)
  local scheme, authority, target = uri:match("^(%a+)://([^/?#]+)([^#]*)")
  if not scheme then return nil, "bad uri: " .. uri end
  if target:sub(1, 1) ~= "/" then target = "/" .. target end
  return scheme:lower() .. "://" .. authority:lower(), target
end

local function lines(headers)
  local list = {}
  for name, value in pairs(headers or {}) do
    local lower = tostring(name):lower()
    -- These follow from the body and from the connection.
    if lower ~= "content-length" and lower ~= "connection" then
      for _, text in ipairs(type(value) == "table" and value or { value }) do
        list[#list + 1] = { tostring(name), tostring(text) }
      end
    end
  end
  return list
end

local Response = {}
Response.__index = Response
function Response:read_body() return self.body end

local function send(self, address, target, options)
  local query = options.query
  if type(query) == "table" then query = entry.encode_args(query) end
  if query and query ~= "" then
    target = target .. (target:find("?", 1, true) and "&" or "?") .. (query:gsub("^%?", ""))
  end
  local body = options.body
  if type(body) == "table" then body = table.concat(body) end
  if body ~= nil and type(body) ~= "string" then error("resty.http: a body has to be a text in scripts", 3) end
  local status, text, fields = wait("resty.http", {
    wish = "http", address = address, verify = options.ssl_verify ~= false, method = options.method or "GET",
    target = target, fields = lines(options.headers), body = body, is_form = false, timeout = self.timeout or nil,
  })
  if not status then return nil, text end
  local headers = setmetatable({}, folded)
  for _, line in ipairs(fields) do
    local name = line[1]:lower()
    local known = rawget(headers, name)
    if known == nil then
      headers[name] = line[2]
    elseif type(known) == "table" then
      known[#known + 1] = line[2]
    else
      headers[name] = { known, line[2] }
    end
  end
  return setmetatable({ status = status, body = text, headers = headers, has_body = text ~= "" }, Response)
end

function Http:set_timeout(milliseconds) self.timeout = milliseconds / 1000 end
function Http:set_timeouts(connect, sending, reading) self.timeout = ((connect or 0) + (sending or 0) + (reading or 0)) / 1000 end
function Http:set_keepalive() return 1 end
function Http:close() return 1 end
function Http:get_reused_times() return 0 end
function Http:request_uri(uri, options)
  local address, target = split(uri)
  if not address then return nil, target end
  options = options or {}
  if options.path then target = options.path end
  return send(self, address, target, options)
end
function Http:connect(host, port)
  local scheme = "http"
  if type(host) == "table" then
    host, port, scheme = host.host, host.port, host.scheme or "http"
    self.verify = host.ssl_verify
  end
  self.address = scheme .. "://" .. host:lower() .. (port and ":" .. port or "")
  return true
end
function Http:ssl_handshake(_, _, verify)
  self.address = self.address:gsub("^http:", "https:")
  self.verify = verify
  return true
end
function Http:request(options)
  if not self.address then return nil, "not connected" end
  if options.ssl_verify == nil then options.ssl_verify = self.verify end
  return send(self, self.address, options.path or "/", options)
end
setmetatable(Http, { __index = function(_, name) error("resty.http " .. tostring(name) .. " is not available in scripts", 2) end })

modules["resty.http"] = strict("resty.http", {
  new = function() return setmetatable({ timeout = false, address = false, verify = true }, Http) end,
})
