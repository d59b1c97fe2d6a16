//! Functions in Lua beside plugins of functions: conditions of routes, scripts of routes, before plugins, own plugins.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{Gateway, Origin, Reload, Start};

fn upstream(origin: &Origin) -> Value {
    json!({ "nodes": { origin.node(): 1 } })
}

#[test]
fn a_function_says_which_requests_a_route_takes() {
    let origin = Origin::echo();
    let route = |id: &str, function: &str, text: &str| {
        json!({ "id": id, "uri": "/*", "priority": 1, "filter_func": function,
                "plugins": { "mocking": { "response_example": text } } })
    };
    let json = route("json", "function(vars) return vars.arg_name == 'json' and vars['http_x_a'] ~= nil end", "json");
    let mut both = route("both", "function(vars) return vars.arg_name:sub(1, 1) == 'x' end", "both");
    both["vars"] = json!([["arg_name", "~~", "y$"]]);
    both["priority"] = json!(2);
    let others = json!({ "id": "others", "uri": "/*", "upstream": upstream(&origin) });
    let rules = json!({ "routes": [json, both, others] });
    let gateway = Gateway::start(&rules);
    let mut client = gateway.client();
    let mut ask = |target: &str, field: &str| {
        client.request(format!("GET {target} HTTP/1.1\r\nHost: a.test\r\n{field}\r\n")).text()
    };
    assert_eq!(ask("/?name=json", "X-A: 1\r\n"), "json");
    assert_eq!(ask("/?name=json", ""), "");
    assert_eq!(ask("/?name=xy", ""), "both");
    assert_eq!(ask("/?name=ay", ""), "");
    assert_eq!(origin.requests().len(), 2);
    // A condition of which nobody knows if it holds lets nothing through.
    for function in [
        "function(vars) return vars.arg_none:sub(1) == 'x' end",
        "function(vars) while true do end end",
        "function(vars) return ngx.req.get_method() == 'GET' end",
    ] {
        let rules = json!({ "routes": [route("fails", function, "taken"), rules["routes"][2]] });
        assert_eq!(gateway.reload(&rules), Reload::Applied, "{function}");
        assert_eq!(gateway.get("/").status, 500, "{function}");
    }
    for wrong in ["function(vars) return", "function_of_mine"] {
        let rules = json!({ "routes": [route("wrong", wrong, "taken")] });
        assert_eq!(gateway.reload(&rules), Reload::Rejected, "{wrong}");
    }
    assert_eq!(origin.requests().len(), 2);
}

#[test]
fn a_script_runs_in_the_place_of_plugins() {
    let origin = Origin::echo();
    let script = r#"
        local core = require("apisix.core")
        local _M = {}
        function _M.access(ctx)
            if ctx.var.arg_closed then core.response.exit(403, {message = "closed"}) end
            core.request.set_header(ctx, "X-Script", ctx.var.uri)
        end
        function _M.header_filter(ctx) ngx.header["X-Route"] = ctx.var.route_id end
        function _M.body_filter(ctx) ngx.arg[1] = ngx.arg[1]:upper() end
        return _M"#;
    let service = json!({ "id": "s", "upstream": upstream(&origin), "plugins": { "key-auth": {} } });
    let route = |script: &str| json!({ "id": "r", "uri": "/*", "service_id": "s", "script": script });
    let rules = |script: &str| json!({ "services": [service], "routes": [route(script)] });
    let gateway = Gateway::start(rules(script));
    let answer = gateway.client().request("POST /x HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\n\r\nhello");
    assert_eq!((answer.status, answer.text().as_str(), answer.field("x-route")), (200, "HELLO", Some("r")));
    assert_eq!(origin.last().field("x-script"), Some("/x"));
    let closed = gateway.get("/x?closed=1");
    assert_eq!((closed.status, closed.text()), (403, "{\"MESSAGE\":\"CLOSED\"}\n".to_owned()));
    for wrong in ["return 1 + 1 + 1", "local x = = 1"] {
        assert_eq!(gateway.reload(rules(wrong)), Reload::Rejected, "{wrong}");
    }
}

/// Routes without a script have that of their service, in the place of all plugins, which is said.
#[test]
fn a_script_of_a_service_runs_for_its_routes() {
    let origin = Origin::echo();
    let script = |text: &str| {
        format!("return {{ access = function() require('apisix.core').response.exit(200, '{text}') end }}")
    };
    let rules = |service: &str| {
        json!({
            "services": [{ "id": "s", "upstream": upstream(&origin), "script": script(service) }],
            "routes": [
                { "id": "bare", "uri": "/bare", "service_id": "s" },
                { "id": "guarded", "uri": "/guarded", "service_id": "s", "plugins": { "key-auth": {} } },
                { "id": "own", "uri": "/own", "service_id": "s", "script": script("own"), "script_id": "drawn" },
                { "id": "other", "uri": "/other", "upstream": upstream(&origin) },
            ],
        })
    };
    let gateway = Gateway::start(rules("shared"));
    let texts = || ["/bare", "/guarded", "/own"].map(|path| gateway.get(path).text());
    assert_eq!(texts(), ["shared", "shared", "own"]);
    assert_eq!((gateway.get("/other").status, origin.requests().len()), (200, 1));
    let warned = gateway.logged("the script of the service runs in the place of its plugins");
    assert!(warned.contains("routes[1]") && !warned.contains("routes[0]"), "{warned}");
    assert_eq!(gateway.reload(rules("changed")), Reload::Applied);
    assert_eq!(texts(), ["changed", "changed", "own"]);
    let wrong = json!({ "services": [{ "id": "s", "script": "local x = = 1" }],
                        "routes": [{ "uri": "/bare", "service_id": "s" }] });
    assert_eq!(gateway.reload(wrong), Reload::Rejected);
}

#[test]
fn a_function_runs_before_a_plugin() {
    let origin = Origin::echo();
    let rules = |function: &str| {
        json!({ "routes": [{ "id": "r", "uri": "/*", "upstream": upstream(&origin), "plugins": {
            "proxy-rewrite": { "headers": { "set": { "X-Seen": "$http_x_before" } },
                               "_meta": { "pre_function": function } },
        } }] })
    };
    let sets = "return function(conf, ctx) if ngx.get_phase() == 'rewrite' then \
                ngx.req.set_header('X-Before', conf.headers.set['X-Seen'] .. ctx.var.arg_n) ngx.sleep(0.01) end end";
    let gateway = Gateway::start(rules(sets));
    for n in 0..3 {
        assert_eq!(gateway.get(&format!("/?n={n}")).status, 200);
        assert_eq!(origin.last().field("x-seen"), Some(format!("$http_x_before{n}").as_str()));
    }
    assert_eq!(
        gateway.reload(rules("return function() require('apisix.core').response.exit(418) end")),
        Reload::Applied
    );
    assert_eq!(gateway.get("/").status, 418);
    assert_eq!(gateway.reload(rules("return function() error('no') end")), Reload::Applied);
    assert_eq!(gateway.get("/").status, 500, "a function that fails lets nothing through");
    assert_eq!(gateway.reload(rules("return function() return")), Reload::Rejected);
    assert_eq!(origin.requests().len(), 3);
}

/// A folder of scripts with these files.
fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, text).expect("a file");
    }
    folder
}

const TEAM: &str = r#"
local core, words = require("apisix.core"), require("team.words")
local schema = {
    type = "object",
    properties = {team = {type = "string", minLength = 2}, code = {type = "integer", default = 403}},
    required = {"team"},
}
local _M = {version = 0.1, priority = 2000, name = "team", schema = schema}
function _M.check_schema(conf) return core.schema.check(schema, conf) end
function _M.access(conf, ctx)
    if core.request.header(ctx, "x-team") ~= conf.team then return conf.code, {message = words.refusal} end
    core.request.set_header(ctx, "X-Who", ctx.consumer_name or "nobody")
end
function _M.header_filter(conf, ctx) core.response.set_header("X-Team", conf.team) end
return _M
"#;

fn own(files: &Path, rules: Value) -> Gateway {
    Start::new(rules).settings(json!({ "scripts": { "folders": [files.display().to_string()] } })).start()
}

#[test]
fn own_plugins_are_files_in_a_folder() {
    let origin = Origin::echo();
    let files = folder(&[
        ("apisix/plugins/team.lua", TEAM),
        ("team/words.lua", "return {refusal = 'not your team'}"),
        ("apisix/plugins/broken.lua", "return {access = function("),
        ("apisix/plugins/speaks.lua", "return {priority = 1, api = function() return {} end}"),
        ("apisix/plugins/key-auth.lua", "return {priority = 1, access = function() end}"),
    ]);
    let rules = |plugins: Value| {
        json!({ "routes": [{ "id": "r", "uri": "/*", "upstream": upstream(&origin), "plugins": plugins }],
                "consumers": [{ "username": "jack", "plugins": { "key-auth": { "key": "jacks" } } }] })
    };
    let gateway = own(files.path(), rules(json!({ "team": { "team": "blue" }, "key-auth": {} })));
    let mut client = gateway.client();
    let mut ask = |fields: &str| client.request(format!("GET /x HTTP/1.1\r\nHost: a.test\r\n{fields}\r\n"));
    assert_eq!(ask("X-Team: blue\r\n").status, 401, "the gateway's own key-auth is meant");
    let refused = ask("apikey: jacks\r\n");
    assert_eq!((refused.status, refused.text()), (403, "{\"message\":\"not your team\"}\n".to_owned()));
    assert_eq!(refused.field("x-team"), Some("blue"));
    assert_eq!(ask("apikey: jacks\r\nX-Team: blue\r\n").status, 200);
    assert_eq!(origin.last().field("x-who"), Some("jack"));
    for (wrong, says) in [
        (json!({ "team": {} }), "team"),
        (json!({ "team": { "team": "b" } }), "team"),
        (json!({ "broken": {} }), "broken.lua"),
        (json!({ "speaks": {} }), "api: a plugin in Lua cannot have APIs of its own"),
    ] {
        assert_eq!(gateway.reload(rules(wrong.clone())), Reload::Rejected, "{wrong}");
        gateway.logged(says);
    }
}

#[test]
fn the_folder_of_own_plugins_is_apisixs_as_well() {
    let origin = Origin::echo();
    let files = folder(&[("apisix/plugins/team.lua", TEAM), ("team/words.lua", "return {refusal = 'no'}")]);
    let rules = json!({ "routes": [{ "id": "r", "uri": "/*", "upstream": upstream(&origin),
                                     "plugins": { "team": { "team": "blue", "code": 410 } } }] });
    let settings = json!({ "apisix": { "extra_lua_path": format!("{}/?.lua", files.path().display()) },
                           "plugins": ["team"] });
    let gateway = Start::new(rules).settings(settings).start();
    assert_eq!(gateway.get("/").status, 410);
}
