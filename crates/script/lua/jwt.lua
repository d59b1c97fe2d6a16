-- resty.jwt: reads tokens, verifies their signatures and times, and signs with a secret.
local raw, entry = ...
local modules, strict, json = entry.modules, entry.strict, entry.json

local function load(text)
  local object = { valid = false, verified = false }
  local head, claims, signature = tostring(text):match("^([%w_-]+)%.([%w_-]+)%.([%w_-]*)$")
  if not head then
    object.reason = "invalid jwt string"
    return object
  end
  local header, payload = json.decode(raw.decode_base64url(head) or ""), json.decode(raw.decode_base64url(claims) or "")
  if type(header) ~= "table" then
    object.reason = "invalid header: " .. head
    return object
  end
  if type(payload) ~= "table" then
    object.reason = "invalid payload: " .. claims
    return object
  end
  object.raw_header, object.raw_payload, object.signature = head, claims, signature
  object.header, object.payload, object.valid = header, payload, true
  return object
end

local function refused(object, reason)
  object.verified, object.reason = false, reason
  return object
end

local function verify(_, key, object, claims)
  if type(object) ~= "table" or not object.valid then
    return refused(type(object) == "table" and object or {}, object and object.reason or "invalid jwt string")
  end
  if type(key) == "function" then key = key(object.header.kid) end
  if type(key) ~= "string" or key == "" then return refused(object, "expected a secret or a public key") end
  local signature = raw.decode_base64url(object.signature)
  local signed = object.raw_header .. "." .. object.raw_payload
  if not signature or not raw.verify_signature(tostring(object.header.alg), key, signed, signature) then
    return refused(object, "signature mismatch: " .. tostring(object.signature))
  end
  local now, payload = raw.now(), object.payload
  local checks_times = not claims or (claims.exp == nil and claims.nbf == nil)
  if checks_times then
    for _, name in ipairs({ "exp", "nbf" }) do
      if payload[name] ~= nil and type(payload[name]) ~= "number" then
        return refused(object, "'" .. name .. "' is malformed. Expected to be a number.")
      end
    end
    if payload.exp and now >= payload.exp then
      return refused(object, "'exp' claim expired at " .. entry.ngx.http_time(payload.exp))
    end
    if payload.nbf and now < payload.nbf then
      return refused(object, "'nbf' claim not valid until " .. entry.ngx.http_time(payload.nbf))
    end
  end
  for name, check in pairs(claims or {}) do
    if type(check) == "function" and name ~= "__jwt" then
      local ok = check(payload[name], payload)
      if ok == false then return refused(object, "Claim '" .. name .. "' ('" .. tostring(payload[name]) .. "') returned failure") end
    end
  end
  object.verified, object.reason = true, "everything is awesome~ :p"
  return object
end

modules["resty.jwt"] = strict("resty.jwt", {
  load_jwt = function(_, text) return load(text) end,
  verify_jwt_obj = verify,
  verify = function(self, key, text, claims) return verify(self, key, load(text), claims) end,
  sign = function(_, key, object)
    local header, payload = object.header or { typ = "JWT", alg = "HS256" }, object.payload
    local signed = raw.encode_base64url(json.encode(header)) .. "." .. raw.encode_base64url(json.encode(payload))
    return signed .. "." .. raw.encode_base64url(raw.sign(header.alg or "HS256", key, signed))
  end,
})
modules["resty.jwt-validators"] = strict("resty.jwt-validators", {
  required = function() return function(value) return value ~= nil end end,
  equals = function(wanted) return function(value) return value == wanted end end,
  is_not_expired = function() return function(value) return type(value) == "number" and raw.now() < value end end,
  is_not_before = function() return function(value) return type(value) == "number" and raw.now() >= value end end,
  opt_is_not_expired = function()
    return function(value) return value == nil or type(value) == "number" and raw.now() < value end
  end,
  opt_is_not_before = function()
    return function(value) return value == nil or type(value) == "number" and raw.now() >= value end
  end,
})
