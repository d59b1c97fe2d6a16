// What scripts of Tyk's users find: the objects that their middleware is made of.
var TykJS = { TykMiddleware: {}, TykEventHandlers: {} };

TykJS.TykMiddleware.NewMiddleware = function (configuration) {
  this.configuration = configuration;
};

TykJS.TykMiddleware.NewMiddleware.prototype.NewProcessRequest = function (callback) {
  this.ProcessRequest = callback;
};

TykJS.TykMiddleware.NewMiddleware.prototype.ReturnData = function (request, meta) {
  return { Request: request, SessionMeta: meta };
};

TykJS.TykMiddleware.NewMiddleware.prototype.ReturnAuthData = function (request, session) {
  return { Request: request, Session: session };
};

TykJS.TykMiddleware.NewMiddleware.prototype.DoProcessRequest = function (request, session, config) {
  if (typeof this.ProcessRequest !== "function") {
    throw new Error("NewProcessRequest was not called");
  }
  request.Body = b64dec(request.Body);
  var result = this.ProcessRequest(request, session, config);
  if (!result || !result.Request) {
    throw new Error("the middleware has not returned ReturnData(request, session.meta_data)");
  }
  result.Request.Body = b64enc(result.Request.Body);
  return result;
};

TykJS.TykMiddleware.NewMiddleware.prototype.NewProcessResponse = function (callback) {
  this.ProcessResponse = callback;
};

TykJS.TykMiddleware.NewMiddleware.prototype.ReturnResponseData = function (response, meta) {
  return { Response: response, SessionMeta: meta };
};

TykJS.TykMiddleware.NewMiddleware.prototype.DoProcessResponse = function (response, request, session, config) {
  if (typeof this.ProcessResponse !== "function") {
    throw new Error("NewProcessResponse was not called");
  }
  var result = this.ProcessResponse(response, request, session, config);
  if (!result || !result.Response) {
    throw new Error("the middleware has not returned ReturnResponseData(response, session.meta_data)");
  }
  return result;
};

TykJS.TykEventHandlers.NewEventHandler = function (configuration) {
  this.configuration = configuration;
};

TykJS.TykEventHandlers.NewEventHandler.prototype.NewHandler = function (callback) {
  this.Handle = callback;
};

TykJS.TykEventHandlers.NewEventHandler.prototype.DoProcessEvent = function (event, context) {
  if (typeof this.Handle !== "function") {
    throw new Error("NewHandler was not called");
  }
  this.Handle(event, context);
};

// The answer of a virtual endpoint.
var TykJsResponse = function (response, meta) {
  return JSON.stringify({ Response: response, SessionMeta: meta });
};

// The way in for virtual endpoints: the function with a global name, and its arguments as JSON.
var weirFunction = function (name, request, session, config) {
  var endpoint = (0, eval)(name);
  if (typeof endpoint !== "function") {
    throw new Error(name + " is no function");
  }
  if (request === undefined) {
    return "";
  }
  var result = endpoint(JSON.parse(request), JSON.parse(session), JSON.parse(config));
  return typeof result === "string" ? result : JSON.stringify(result || null);
};

// The way in: the middleware with a global name, and its arguments as JSON. `let` and `const` make no properties of the
// global object, so the name is evaluated.
var weirMiddleware = function (name, request, session, config) {
  var middleware = (0, eval)(name);
  if (!middleware || typeof middleware.DoProcessRequest !== "function") {
    throw new Error(name + " is no middleware: expected new TykJS.TykMiddleware.NewMiddleware({})");
  }
  if (request === undefined) {
    return "";
  }
  return JSON.stringify(middleware.DoProcessRequest(JSON.parse(request), JSON.parse(session), JSON.parse(config)));
};

// The way in for answers: the middleware with a global name, the answer with its request, and the other arguments as JSON.
var weirResponse = function (name, messages, session, config) {
  var middleware = (0, eval)(name);
  if (!middleware || typeof middleware.ProcessResponse !== "function") {
    throw new Error(name + " is no middleware of answers: expected NewProcessResponse to be called on it");
  }
  if (messages === undefined) {
    return "";
  }
  var both = JSON.parse(messages);
  return JSON.stringify(
    middleware.DoProcessResponse(both.Response, both.Request, JSON.parse(session), JSON.parse(config))
  );
};

// The way in for events: the handler with a global name, the event and the API as JSON.
var weirEvent = function (name, event, session, config) {
  var handler = (0, eval)(name);
  if (!handler || typeof handler.DoProcessEvent !== "function") {
    throw new Error(name + " is no handler of events: expected new TykJS.TykEventHandlers.NewEventHandler({})");
  }
  if (event !== undefined) {
    var api = JSON.parse(config);
    handler.DoProcessEvent(JSON.parse(event), { APIID: api.APIID, OrgID: api.OrgID });
  }
  return "";
};
