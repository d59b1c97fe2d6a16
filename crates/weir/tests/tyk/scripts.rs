//! Middleware in JavaScript, in the form in which Tyk's users have it.

use std::fs;

use serde_json::{Value, json};

use super::{Site, error, keyed, keyless, right, send, told};
use crate::harness::{Answer, Origin, Redis, weir};

/// Writes a script into the folder `middleware`.
fn script(site: &Site, name: &str, text: &str) {
    fs::create_dir_all(site.folder.path().join("middleware")).expect("create a folder");
    site.write(&format!("middleware/{name}.js"), text);
}

/// A middleware with this function.
fn middleware(name: &str, body: &str) -> String {
    format!(
        "var {name} = new TykJS.TykMiddleware.NewMiddleware({{}});\n\n{name}.NewProcessRequest(function(request, session, config) {{\n{body}\nreturn {name}.ReturnData(request, session.meta_data);\n}});\n\nlog(\"{name} initialised\");\n"
    )
}

/// A definition with middleware.
fn scripted(mut definition: Value, pre: &[&str], post: &[&str]) -> Value {
    let hooks = |names: &[&str]| {
        let hook =
            |name: &&str| json!({"name": name, "path": format!("./middleware/{name}.js"), "require_session": false});
        names.iter().map(hook).collect::<Vec<_>>()
    };
    definition["custom_middleware"] = json!({"pre": hooks(pre), "post": hooks(post), "driver": "otto"});
    definition
}

#[test]
fn scripts_change_requests_and_answer() {
    let service = Origin::answering(|request| {
        let asked = format!("{} {} {}", request.method, request.target, request.field("X-S").unwrap_or_default());
        Answer::ok(&asked)
    });
    let site = Site::new();
    script(
        &site,
        "sample",
        &middleware(
            "sample",
            "request.SetHeaders['X-Body'] = request.Body.length + config.APIID + config.OrgID + config.config_data.a;
             request.SetHeaders['X-Seen'] = request.Headers['X-In'] ? request.Headers['X-In'][0] : 'none';
             request.DeleteHeaders.push('X-Gone');
             request.AddParams['added'] = b64enc('?') + b64dec('aGk=');
             request.DeleteParams.push('gone');
             request.Body = request.Body + '!';",
        ),
    );
    script(
        &site,
        "answers",
        &middleware(
            "answers",
            "if (request.Params.code) {
                 request.ReturnOverrides.ResponseCode = parseInt(request.Params.code[0]);
                 request.ReturnOverrides.ResponseError = 'no ' + request.Params.code[0];
                 request.ReturnOverrides.ResponseHeaders = {'X-Own': 'o'};
             }
             if (request.Params.to) { request.URL = '/sc/' + request.Params.to[0]; }
             if (request.Params.loop) { while (true) {} }
             if (request.Params.fill) { var all = []; while (true) { all.push('x'.repeat(100000) + all.length); } }
             if (request.Params['throw']) { throw new Error('thrown'); }",
        ),
    );
    script(
        &site,
        "asks",
        &middleware(
            "asks",
            &format!(
                "var answer = JSON.parse(TykMakeHttpRequest(JSON.stringify({{Method: 'POST', Domain: 'http://{}', Resource: '/r', Headers: {{'X-S': 's'}}, Body: 'b'}})));
                 request.SetHeaders['X-Answer'] = answer.Code + ' ' + answer.Body;
                 var batch = JSON.parse(TykBatchRequest(JSON.stringify({{requests: [
                     {{method: 'PUT', headers: {{'X-S': 't'}}, body: 'b', relative_url: 'http://{}/one?a=1'}},
                     {{method: 'GET', relative_url: 'http://127.0.0.1:1/'}}]}})));
                 request.SetHeaders['X-Batch'] = batch.map(function (one) {{ return one.code + ' ' + one.body; }}).join(',')
                     + TykBatchRequest('nonsense');",
                service.node(),
                service.node()
            ),
        ),
    );
    let mut both = scripted(keyless("sc", "/sc/", "/"), &["sample"], &["answers"]);
    both["config_data"] = json!({"a": "A"});
    site.api("sc", both);
    site.api("asks", scripted(keyless("asks", "/asks/", "/"), &["asks"], &[]));
    let gateway = crate::harness::Start::at(&site.conf(json!({"jsvm_timeout": 1, "enable_jsvm": true}))).start();
    let response = send(&gateway, "POST /sc/a?b=1&gone=2\nX-In: in\nX-Gone: g\n\nbody");
    assert_eq!(told(&response), (200, "body!".to_owned()), "{response:?}");
    let request = site.origin.last();
    assert_eq!(request.target, "/a?b=1&added=Pw%3D%3Dhi");
    assert_eq!(
        (request.field("X-Body"), request.field("X-Seen"), request.field("X-Gone")),
        (Some("4sco1A"), Some("in"), None)
    );
    let own = send(&gateway, "GET /sc/a?code=200");
    assert_eq!((told(&own), own.field("X-Own")), ((200, "no 200".to_owned()), Some("o")));
    let refused = send(&gateway, "GET /sc/a?code=418");
    assert_eq!((told(&refused), refused.field("X-Own")), ((418, error("no 418")), Some("o")));
    assert_eq!(send(&gateway, "GET /sc/a?to=other").status, 200);
    assert!(site.origin.last().target.starts_with("/other?to=other"), "{:?}", site.origin.last());
    for fault in ["loop", "fill", "throw"] {
        let failed = send(&gateway, &format!("GET /sc/a?{fault}=1"));
        assert_eq!(told(&failed), (500, error("Middleware error")), "{fault}");
    }
    assert_eq!(send(&gateway, "GET /sc/a").status, 200, "others go on");
    assert_eq!(send(&gateway, "GET /asks/").status, 200);
    assert_eq!(site.origin.last().field("X-Answer"), Some("200 POST /r s"));
    assert_eq!(site.origin.last().field("X-Batch"), Some("200 PUT /one?a=1 t,0 undefined"));
}

/// A middleware for answers with this function.
fn of_answers(name: &str, body: &str) -> String {
    format!(
        "var {name} = new TykJS.TykMiddleware.NewMiddleware({{}});
         {name}.NewProcessResponse(function(response, request, session, config) {{
             {body}
             return {name}.ReturnResponseData(response, session.meta_data);
         }});"
    )
}

#[test]
fn scripts_change_answers() {
    let origin = Origin::answering(|request| {
        let body = if request.target.starts_with("/bytes") { &b"\xff\xfe"[..] } else { b"{\"a\": \"b\"}" };
        let head =
            format!("HTTP/1.1 200 OK\r\nX-Two: 1\r\nX-Two: 2\r\nX-Gone: g\r\nContent-Length: {}\r\n\r\n", body.len());
        Answer::keep([head.as_bytes(), body].concat())
    });
    let site = Site::at(origin);
    script(
        &site,
        "changes",
        &of_answers(
            "changes",
            "var told = [response.StatusCode, response.Headers['X-Two'].join('+'), request.Method, request.URL, config.APIID];
             response.SetHeaders['X-Told'] = told.join(' ');
             response.DeleteHeaders.push('X-Gone');
             if (request.Params.code) { response.StatusCode = parseInt(request.Params.code[0]); }
             if (request.Params.body) { response.Body = response.Body + '!'; }
             if (request.Params['throw']) { throw new Error('thrown'); }
             if (request.Params.loop) { while (true) {} }
             if (request.Params.lines) { response.SetHeaders['X-Told'] = 'a\\nb'; }",
        ),
    );
    script(&site, "again", &of_answers("again", "response.Body = response.Body + '?';"));
    script(&site, "none", &of_answers("none", "return;"));
    let with = |id: &str, names: &[&str]| {
        let mut definition = keyless(id, &format!("/{id}/"), "/");
        let hook = |name: &&str| json!({"name": name, "path": format!("./middleware/{name}.js")});
        definition["custom_middleware"] =
            json!({"response": names.iter().map(hook).collect::<Vec<_>>(), "driver": "otto"});
        definition
    };
    let mut both = with("both", &["changes", "again"]);
    let template = crate::signatures::base64(b"<{{.a}}>");
    both["version_data"]["versions"]["Default"] = json!({
        "name": "Default", "use_extended_paths": true, "extended_paths": {
            "transform_response": [{"path": "/t", "method": "GET", "template_data": {
                "template_mode": "blob", "template_source": template, "input_type": "json", "enable_session": false}}],
            "cache": ["/kept"],
        },
    });
    both["cache_options"] = json!({"enable_cache": true, "cache_timeout": 60});
    site.api("both", both);
    site.api("one", with("one", &["changes"]));
    site.api("none", with("none", &["none"]));
    let gateway = crate::harness::Start::at(&site.conf(json!({"jsvm_timeout": 1, "enable_jsvm": true}))).start();
    let response = send(&gateway, "GET /one/a?body=1&code=203");
    assert_eq!(told(&response), (203, "{\"a\": \"b\"}!".to_owned()));
    let fields = ["X-Told", "X-Gone"].map(|name| response.field(name));
    assert_eq!(fields, [Some("200 1+2 GET /one/a?body=1&code=203 one"), None]);
    // A body that is no text, which the script leaves as it is.
    assert_eq!(send(&gateway, "GET /one/bytes").body, b"\xff\xfe");
    // Behind the templates of paths, one after the other; what is kept is the new answer.
    assert_eq!(told(&send(&gateway, "GET /both/t?body=1")), (200, "<b>!?".to_owned()));
    for is_kept in [false, true] {
        let response = send(&gateway, "GET /both/kept");
        let kept = response.field("X-Tyk-Cached-Response").is_some();
        assert_eq!((told(&response), kept), ((200, "{\"a\": \"b\"}?".to_owned()), is_kept));
        assert!(response.field("X-Told").is_some());
    }
    for target in ["/one/?throw=1", "/one/?loop=1", "/one/?lines=1", "/one/?code=99", "/none/"] {
        assert_eq!(told(&send(&gateway, &format!("GET {target}"))), (500, error("Middleware error")), "{target}");
    }
    assert_eq!(send(&gateway, "GET /one/a").status, 200, "others go on");
}

#[test]
fn a_script_without_a_function_for_answers_is_refused() {
    let site = Site::new();
    script(&site, "own", &middleware("own", ""));
    let mut definition = keyless("a", "/a/", "/");
    let hook = json!({"name": "own", "path": "./middleware/own.js"});
    definition["custom_middleware"] = json!({"response": [hook], "driver": "otto"});
    site.api("a", definition);
    let (status, out, err) = weir(&["check", &site.apps().display().to_string()]);
    let told = out + &err;
    assert!(status != 0 && told.contains("own is no middleware of answers: expected NewProcessResponse"), "{told}");
}

#[test]
fn scripts_run_before_authentication_and_behind_it() {
    let site = Site::new();
    // As a file of a user has it: credentials out of an argument, in front of basic authentication.
    script(
        &site,
        "credentials",
        &middleware(
            "credentials",
            "if (request.Params.t) { request.SetHeaders['Authorization'] = 'Basic ' + request.Params.t[0]; }",
        ),
    );
    script(
        &site,
        "meta",
        &middleware(
            "meta",
            "request.SetHeaders['X-Alias'] = session.alias + session.meta_data.m;\nsession.meta_data.m = 'changed';",
        ),
    );
    let mut basic = scripted(keyed("basic"), &["credentials"], &["meta"]);
    basic["use_basic_auth"] = true.into();
    basic["version_data"]["versions"]["Default"]["global_headers"] = json!({"X-Meta": "$tyk_meta.m"});
    site.api("basic", basic);
    let gateway = site.start();
    let user = json!({"basic_auth_data": {"password": "pass"}, "alias": "joe", "meta_data": {"m": "M"}});
    assert_eq!(super::ask(&gateway, "POST", "/tyk/keys/joe", &right("basic", user)).0, 200);
    // joe:pass
    assert_eq!(send(&gateway, "GET /basic/?t=am9lOnBhc3M%3D").status, 200);
    let request = site.origin.last();
    assert_eq!((request.field("X-Alias"), request.field("X-Meta")), (Some("joeM"), Some("changed")));
    assert_eq!(send(&gateway, "GET /basic/").status, 401);
}

/// A definition as Tyk 5 exports it, with what it has in its own words.
#[test]
fn definitions_in_the_oas_form_have_the_same() {
    let site = Site::new();
    script(&site, "seen", &middleware("seen", "request.SetHeaders['X-Seen'] = config.APIID;"));
    script(&site, "answer", &of_answers("answer", "response.SetHeaders['X-Own'] = config.APIID;"));
    let template = crate::signatures::base64(b"{\"to\": \"{{.from}}\"}");
    site.api("oas", json!({
        "openapi": "3.0.3", "info": {"title": "oas", "version": "1"},
        "paths": {
            "/t": {"post": {"operationId": "tpost"}}, "/c": {"get": {"operationId": "cget"}},
            "/b": {"get": {"operationId": "bget"}}
        },
        "components": {"securitySchemes": {}},
        "x-tyk-api-gateway": {
            "info": {"name": "oas", "id": "oas", "orgId": "o1", "dbId": "", "state": {"active": true, "internal": false}},
            "upstream": {"url": "http://ORIGIN/"},
            "server": {"listenPath": {"value": "/oas/", "strip": true}, "batchProcessing": {"enabled": true}},
            "middleware": {
                "global": {
                    "trafficLogs": {"enabled": true}, "pluginConfig": {"driver": "otto"},
                    "cache": {"enabled": true, "timeout": 60},
                    "prePlugins": [{"enabled": true, "functionName": "seen", "path": "middleware/seen.js", "rawBodyOnly": false}],
                    "postPlugins": [{"enabled": false, "functionName": "gone", "path": "middleware/gone.js"}],
                    "responsePlugins": [{"enabled": true, "functionName": "answer", "path": "middleware/answer.js"}]
                },
                "operations": {
                    "tpost": {"transformRequestBody": {"enabled": true, "format": "json", "path": "", "body": template}},
                    "cget": {"cache": {"enabled": true, "timeout": 60}},
                    "bget": {"circuitBreaker": {"enabled": true, "threshold": 0.5, "sampleSize": 4, "coolDownPeriod": 60, "halfOpenStateEnabled": true}}
                }
            }
        }
    }));
    let gateway = site.start();
    let response = send(&gateway, "POST /oas/t\n\n{\"from\": \"a\"}");
    assert_eq!(told(&response), (200, "{\"to\": \"a\"}".to_owned()));
    assert_eq!(response.field("X-Own"), Some("oas"));
    assert_eq!(site.origin.last().field("X-Seen"), Some("oas"));
    let cached = |path: &str| send(&gateway, &format!("GET {path}")).field("X-Tyk-Cached-Response").is_some();
    assert_eq!([cached("/oas/c"), cached("/oas/c"), cached("/oas/b"), cached("/oas/b")], [false, true, false, false]);
    assert_eq!(send(&gateway, "POST /oas/tyk/batch/\n\n{\"requests\": []}").json(), json!([]));
}

/// Scripts read sessions of keys and change them, in this process and in Redis.
#[test]
fn scripts_know_the_sessions_of_keys() {
    let redis = Redis::start();
    let in_redis = json!({"type": "redis", "host": "127.0.0.1", "port": redis.port});
    for storage in [Value::Null, in_redis] {
        let site = Site::new();
        script(
            &site,
            "sessions",
            &middleware(
                "sessions",
                "var key = request.Headers['X-Key'][0];
                 var session = JSON.parse(TykGetKeyData(key, config.APIID));
                 request.SetHeaders['X-Rate'] = String(session.rate === undefined ? session.message : session.rate);
                 if (request.Params.rate) {
                     session.rate = parseInt(request.Params.rate[0]);
                     TykSetKeyData(key, JSON.stringify(session), 1);
                 }
                 if (request.Params.wrong) { TykSetKeyData(key, 'nonsense', 0); }",
            ),
        );
        site.api("keyed", keyed("keyed"));
        site.api("open", scripted(keyless("open", "/open/", "/"), &["sessions"], &[]));
        let more = match &storage {
            Value::Null => json!({}),
            storage => json!({"storage": storage}),
        };
        let gateway = crate::harness::Start::at(&site.conf(more)).start();
        let key = super::key(&gateway, &right("keyed", json!({"rate": 100, "meta_data": {"a": "b"}})));
        let rate = |query: &str, key: &str| {
            let response = send(&gateway, &format!("GET /open/{query}\nX-Key: {key}"));
            assert_eq!(response.status, 200, "{response:?}");
            site.origin.last().field("X-Rate").unwrap_or_default().to_owned()
        };
        assert_eq!(rate("", &key), "100");
        assert_eq!(rate("?rate=7", &key), "100");
        assert_eq!(rate("?wrong=1", &key), "7");
        assert_eq!(rate("", &key), "7");
        let (status, session) = super::ask(&gateway, "GET", &format!("/tyk/keys/{key}?api_id=keyed"), &Value::Null);
        assert_eq!(
            (status, &session["rate"], &session["meta_data"]),
            (200, &json!(7), &json!({"a": "b"})),
            "{session}"
        );
        assert_eq!(send(&gateway, &format!("GET /keyed/\nAuthorization: {key}")).status, 200);
        assert_eq!(rate("", "nobody"), "Key not found");
    }
}

#[test]
fn scripts_that_cannot_run_are_refused_with_their_names() {
    for (text, hooks, expected) in [
        (Some("var own = {"), json!({}), "middleware/own.js"),
        (Some("var other = 1;"), json!({}), "is not defined"),
        (None, json!({}), "there is no such file"),
        (Some(""), json!({"driver": "python"}), "middleware in 'python' is not supported"),
        (Some(""), json!({"driver": "goplugin"}), "middleware in 'goplugin' is not supported"),
    ] {
        let site = Site::new();
        if let Some(text) = text {
            script(&site, "own", text);
        }
        let mut definition = scripted(keyless("a", "/a/", "/"), &["own"], &[]);
        for (name, value) in hooks.as_object().expect("fields") {
            definition["custom_middleware"][name] = value.clone();
        }
        site.api("a", definition);
        let (status, out, err) = weir(&["check", &site.apps().display().to_string()]);
        let told = out + &err;
        assert!(status != 0 && told.contains(expected), "{expected}: {told}");
    }
}

#[test]
fn functions_answer_at_virtual_endpoints() {
    let site = Site::new();
    script(
        &site,
        "endpoints",
        "function shown(request, session, config) {
             var seen = [request.URL, request.Body, request.Params.a ? request.Params.a[0] : '', config.APIID, config.config_data.b,
                         session.meta_data ? session.meta_data.team : 'none', request.Headers['X-In'] ? request.Headers['X-In'][0] : ''];
             return TykJsResponse({Body: seen.join(' '), Headers: {'X-Own': 'o', 'Content-Type': 'text/x'}, Code: 201}, session.meta_data);
         }
         function plain(request) { return TykJsResponse({body: 'plain'}, {}); }
         function fails() { throw new Error('thrown'); }
         function nothing() {}
         function loops() { while (true) {} }",
    );
    let uri = "./middleware/endpoints.js";
    let endpoint = |path: &str, method: &str, name: &str| {
        json!({"path": path, "method": method, "response_function_name": name, "function_source_type": "file",
               "function_source_uri": uri, "use_session": true, "proxy_on_error": false})
    };
    let mut through = endpoint("/through", "GET", "fails");
    through["proxy_on_error"] = json!(true);
    let blob = "ZnVuY3Rpb24gYmxvYigpIHsgcmV0dXJuIFR5a0pzUmVzcG9uc2Uoe0JvZHk6ICdibG9iJ30sIHt9KTsgfQ==";
    let mut encoded = endpoint("/blob", "GET", "blob");
    (encoded["function_source_type"], encoded["function_source_uri"]) = (json!("blob"), json!(blob));
    let mut off = endpoint("/off", "GET", "plain");
    off["disabled"] = json!(true);
    let list = json!([
        endpoint("/shown", "POST", "shown"),
        endpoint("/plain", "GET", "plain"),
        endpoint("/fails", "GET", "fails"),
        endpoint("/nothing", "GET", "nothing"),
        endpoint("/loops", "GET", "loops"),
        through,
        encoded,
        off
    ]);
    let with = |mut definition: Value| {
        definition["config_data"] = json!({"b": "B"});
        let versions = &mut definition["version_data"]["versions"]["Default"];
        versions["use_extended_paths"] = json!(true);
        versions["extended_paths"]["virtual"] = list.clone();
        definition
    };
    site.api("v", with(keyless("v", "/v/", "/")));
    site.api("k", with(keyed("k")));
    let gateway = crate::harness::Start::at(&site.conf(json!({"jsvm_timeout": 1}))).start();
    let shown = send(&gateway, "POST /v/shown?a=1\nX-In: in\n\nbody");
    assert_eq!(told(&shown), (201, "/v/shown body 1 v B none in".to_owned()));
    assert_eq!((shown.field("X-Own"), shown.field("Content-Type")), (Some("o"), Some("text/x")));
    assert_eq!(told(&send(&gateway, "GET /v/plain")), (200, "plain".to_owned()));
    assert_eq!(told(&send(&gateway, "GET /v/blob")), (200, "blob".to_owned()));
    assert!(site.origin.requests().is_empty(), "nothing has gone to the upstream");
    let failed = error("Error during virtual endpoint execution. Contact Administrator for more details.");
    for path in ["fails", "nothing", "loops"] {
        assert_eq!(told(&send(&gateway, &format!("GET /v/{path}"))), (500, failed.clone()), "{path}");
    }
    for path in ["through", "off", "shown"] {
        assert_eq!(send(&gateway, &format!("GET /v/{path}")).status, 200, "{path}");
        assert_eq!(site.origin.last().target, format!("/{path}"));
    }
    assert_eq!(send(&gateway, "GET /k/plain").status, 401, "behind authentication");
    // A name that is no function, a script that is not there, and what is no base64.
    for (field, value, expected) in [
        ("response_function_name", "none", "none is not defined"),
        ("function_source_uri", "./middleware/none.js", "there is no such file"),
        ("function_source_type", "blob", "expected a script in base64"),
    ] {
        let site = Site::new();
        script(&site, "endpoints", "function plain() {}");
        let mut definition = keyless("w", "/w/", "/");
        let mut wrong = endpoint("/a", "GET", "plain");
        wrong[field] = json!(value);
        definition["version_data"]["versions"]["Default"] =
            json!({"name": "Default", "use_extended_paths": true, "extended_paths": {"virtual": [wrong]}});
        site.api("w", definition);
        let (status, out, err) = weir(&["check", &site.apps().display().to_string()]);
        assert!(status != 0 && (out.clone() + &err).contains(expected), "{expected}: {out}{err}");
    }
}

/// A script that knows callers by their tokens.
const KNOW: &str = "var know = new TykJS.TykMiddleware.NewMiddleware({});
know.NewProcessRequest(function(request, session, config) {
    var token = (request.Headers['Authorization'] || [''])[0];
    if (token === 'boom') throw new Error('boom');
    if (token === 'nobody') return know.ReturnData(request, {});
    if (token === 'stop') {
        request.ReturnOverrides.ResponseCode = 401;
        request.ReturnOverrides.ResponseError = 'Go away';
        return know.ReturnData(request, {});
    }
    request.SetHeaders['X-Known'] = token + config.APIID;
    var rights = token === 'elsewhere' ? {} : {sc: {api_id: 'sc', versions: ['Default']}};
    var result = know.ReturnAuthData(request, {
        org_id: 'o1', rate: 100, per: 1, quota_max: 2, quota_renewal_rate: 3600, expires: token === 'old' ? 1000 : 0,
        access_rights: token === 'broken' ? 'all' : rights, meta_data: {name: token},
    });
    if (token.indexOf('key') === 0) result.AuthValue = token;
    return result;
});
";

#[test]
fn a_script_knows_the_callers() {
    for is_oas in [false, true] {
        let site = Site::new();
        script(&site, "know", KNOW);
        let path = "middleware/know.js";
        if is_oas {
            site.api(
                "sc",
                json!({"openapi": "3.0.3", "info": {"title": "sc", "version": "1"}, "paths": {}, "x-tyk-api-gateway": {
                    "info": {"name": "sc", "id": "sc", "orgId": "o1", "state": {"active": true}}, "upstream": {"url": "http://ORIGIN/"},
                    "server": {"listenPath": {"value": "/sc/", "strip": true}, "authentication": {"enabled": true,
                        "custom": {"enabled": true, "config": {"enabled": true, "functionName": "know", "path": path}}}},
                    "middleware": {"global": {"pluginConfig": {"driver": "otto"}}}}}),
            );
        } else {
            let mut api = keyed("sc");
            api["use_standard_auth"] = false.into();
            api["enable_coprocess_auth"] = true.into();
            api["custom_middleware"] = json!({"driver": "otto", "auth_check": {"name": "know", "path": path}});
            site.api("sc", api);
        }
        let gateway = site.start();
        let ask = |key: &str| told(&send(&gateway, &format!("GET /sc/\nAuthorization: {key}")));
        for (key, status, body) in [
            ("stop", 401, error("Go away")),
            ("nobody", 403, error("Forbidden")),
            ("broken", 403, error("Access to this API has been disallowed")),
            ("boom", 500, error("Middleware error")),
            ("elsewhere", 403, error("Access to this API has been disallowed")),
            ("old", 401, error("Key has expired, please renew")),
        ] {
            assert_eq!(ask(key), (status, body), "{key}");
        }
        assert_eq!(site.origin.requests().len(), 0);
        // Each caller has a quota of its own, and all without a name have one.
        assert_eq!(["key-1", "key-1", "key-1", "key-2"].map(|key| ask(key).0), [200, 200, 403, 200]);
        assert_eq!(site.last_field("X-Known").as_deref(), Some("key-2sc"));
        assert_eq!(["a", "b", "c"].map(|key| ask(key).0), [200, 200, 403]);
    }
}
