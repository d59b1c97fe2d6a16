//! People's own functions in Lua: requests to services, tokens, budgets, and what settings allow.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Answer, Connection, Gateway, Origin, Reload, Start, get, post};

/// A route for everything with this function.
fn rules(node: &str, function: &str) -> Value {
    with_phase(node, "access", function)
}

fn with_phase(node: &str, phase: &str, function: &str) -> Value {
    let plugins = json!({ "serverless-pre-function": { "phase": phase, "functions": [function] } });
    json!({ "routes": [{ "id": "all", "uri": "/*", "upstream": { "nodes": { node: 1 } }, "plugins": plugins }] })
}

#[test]
fn a_service_is_asked() {
    let origin = Origin::echo();
    let service = Origin::answering(|request| match request.target.as_str() {
        "/v1/data?team=a%20b" => Answer::ok(r#"{"result":{"allow":true,"who":"jack"}}"#),
        _ => Answer::status(403, "no"),
    });
    let function = format!(
        r#"return function(conf, ctx)
            local core = require("apisix.core")
            local client = require("resty.http").new()
            client:set_timeout(2000)
            local answer, fault = client:request_uri("http://{}/v1/data", {{
                method = "POST", query = {{team = core.request.header(ctx, "x-team")}},
                headers = {{["Content-Type"] = "application/json", ["X-From"] = "weir"}},
                body = core.json.encode({{input = {{path = ctx.var.uri}}}}),
            }})
            if not answer then return 503, {{message = fault}} end
            if answer.status ~= 200 then return answer.status, answer.body end
            local result = core.json.decode(answer.body).result
            core.request.set_header(ctx, "X-Who", result.who)
            core.request.set_header(ctx, "X-Length", answer.headers["Content-Length"])
        end"#,
        service.node()
    );
    let gateway = Gateway::start(rules(&origin.node(), &function));
    let mut client = gateway.client();
    for _ in 0..3 {
        let answer = client.request("POST /a HTTP/1.1\r\nHost: a.test\r\nX-Team: a b\r\nContent-Length: 4\r\n\r\nbody");
        assert_eq!((answer.status, answer.text().as_str()), (200, "body"));
        assert_eq!(origin.last().field("x-who"), Some("jack"));
        assert_eq!(origin.last().field("x-length"), Some("38"));
    }
    let asked = service.last();
    assert_eq!((asked.method.as_str(), asked.target.as_str()), ("POST", "/v1/data?team=a%20b"));
    assert_eq!(
        (asked.field("x-from"), asked.body.as_slice()),
        (Some("weir"), br#"{"input":{"path":"/a"}}"#.as_slice())
    );
    assert_eq!(service.connections(), 1, "the connection is kept");
    let refused = client.get("/a");
    assert_eq!((refused.status, refused.text().as_str()), (403, "no"));
    assert_eq!(origin.requests().len(), 3);
}

#[test]
fn a_service_that_is_away_or_slow_is_told_to_the_script() {
    let origin = Origin::hello();
    let slow = Origin::scripted(Connection::await_close);
    let away = Origin::hello();
    away.die();
    for (node, says) in [(slow.node(), "callout timed out"), (away.node(), "")] {
        let function = format!(
            r#"return function()
                local client = require("resty.http").new()
                client:set_timeout(300)
                local answer, fault = client:request_uri("http://{node}/")
                if not answer then return 503, fault end
            end"#
        );
        let gateway = Gateway::start(rules(&origin.node(), &function));
        let answer = gateway.get("/");
        assert_eq!(answer.status, 503);
        assert!(answer.text().contains(says), "{}", answer.text());
    }
    assert_eq!(origin.requests().len(), 0);
}

#[test]
fn a_service_that_no_text_names_is_not_asked() {
    let (origin, service) = (Origin::hello(), Origin::hello());
    let function = format!(
        "return function() return require('resty.http').new():request_uri('http:' .. '//{}/').status end",
        service.node()
    );
    let gateway = Gateway::start(rules(&origin.node(), &function));
    assert_eq!(gateway.get("/").status, 500);
    gateway.logged("have to stand as a text in the script");
    assert_eq!((origin.requests().len(), service.requests().len()), (0, 0));
}

#[test]
fn tokens_are_verified() {
    let origin = Origin::echo();
    // {"sub":"jack","exp":4102444800}, signed with HS256 by "a-secret"; made by the script itself as well.
    let function = r#"return function(conf, ctx)
        local core, jwt = require("apisix.core"), require("resty.jwt")
        if ctx.var.uri == "/sign" then
            return 200, jwt:sign("a-secret", {header = {typ = "JWT", alg = "HS256"}, payload = {sub = "jack", exp = tonumber(ctx.var.arg_exp)}})
        end
        local text = (core.request.header(ctx, "authorization") or ""):match("^Bearer (.+)$")
        if not text then return 401, {message = "no token"} end
        local token = jwt:verify("a-secret", text)
        if not token.verified then return 401, {message = token.reason} end
        core.request.set_header(ctx, "X-User", token.payload.sub)
    end"#;
    let gateway = Gateway::start(rules(&origin.node(), function));
    let mut client = gateway.client();
    let good = client.get("/sign?exp=4102444800").text();
    let expired = client.get("/sign?exp=1000000000").text();
    let mut ask = |token: &str| {
        client.request(format!("GET /x HTTP/1.1\r\nHost: a.test\r\nAuthorization: Bearer {token}\r\n\r\n"))
    };
    assert_eq!(ask(&good).status, 200);
    assert_eq!(origin.last().field("x-user"), Some("jack"));
    let (head, rest) = good.split_once('.').expect("three parts");
    // The header {"typ":"JWT","alg":"none"} in the place of the own one, and no signature.
    let claims = rest.split('.').next().expect("claims");
    let none = format!("eyJ0eXAiOiJKV1QiLCJhbGciOiJub25lIn0.{claims}.");
    let cut = format!("{head}.{claims}.AAAA");
    for (token, says) in [
        (expired.as_str(), "expired"),
        (none.as_str(), "signature mismatch"),
        (cut.as_str(), "signature mismatch"),
        ("x.y", "invalid jwt string"),
    ] {
        let answer = ask(token);
        assert_eq!(answer.status, 401, "{token}");
        assert!(answer.text().contains(says), "{token}: {}", answer.text());
    }
    assert_eq!(origin.requests().len(), 1);
}

#[test]
fn a_script_that_loops_does_not_hold_up_others() {
    let origin = Origin::echo();
    let looping = json!({ "serverless-pre-function": { "functions": ["return function() while true do end end"] } });
    let upstream = json!({ "nodes": { origin.node(): 1 } });
    let config = json!({ "routes": [
        { "id": "loops", "uri": "/loops", "upstream": upstream, "plugins": looping },
        { "id": "others", "uri": "/others", "upstream": upstream },
    ] });
    let gateway = Start::new(config).settings(json!({ "scripts": { "instructions": 100_000 } })).start();
    thread::scope(|scope| {
        let loops = scope.spawn(|| {
            let mut client = gateway.client();
            (0..20).for_each(|_| assert_eq!(client.get("/loops").status, 500));
        });
        let mut client = gateway.client();
        let mut longest = Duration::ZERO;
        for _ in 0..200 {
            let start = Instant::now();
            assert_eq!(client.get("/others").status, 200);
            longest = longest.max(start.elapsed());
        }
        loops.join().expect("all loops are ended");
        assert!(longest < Duration::from_secs(2), "{longest:?}");
    });
    gateway.logged("the script has taken more than 100000 instructions (scripts.instructions)");
}

#[test]
fn an_interpreter_that_scripts_have_filled_gives_way() {
    let origin = Origin::echo();
    // Each call keeps 4 MiB for ever.
    let function = "local kept = {} return function() kept[#kept + 1] = ('x'):rep(4194304) .. #kept end";
    let settings = json!({ "scripts": { "state_memory": "32MiB", "memory": "16MiB" } });
    let gateway = Gateway::with(rules(&origin.node(), function), settings);
    let mut client = gateway.client();
    let statuses: Vec<u16> = (0..60).map(|_| client.get("/").status).collect();
    let failed = statuses.iter().filter(|status| **status == 500).count();
    assert!(statuses.iter().all(|status| matches!(status, 200 | 500)), "{statuses:?}");
    assert!((1..=20).contains(&failed), "{failed} of 60 have found no memory: {statuses:?}");
}

#[test]
fn settings_allow_the_environment_and_files() {
    let origin = Origin::echo();
    let function = "return function() return 200, (os.getenv('SCRIPT_TEST') or 'unset') end";
    let gateway = Start::new(rules(&origin.node(), function))
        .settings(json!({ "scripts": { "allow": ["environment"] } }))
        .variable("SCRIPT_TEST", "set")
        .start();
    assert_eq!(gateway.get("/").text(), "set");
    let files = "return function() local f = assert(io.open('/proc/self/comm')) local t = f:read('*l') f:close() return 200, t end";
    assert_eq!(gateway.reload(rules(&origin.node(), files)), Reload::Applied);
    assert_eq!(gateway.get("/").status, 500);
    gateway.logged("io.open is not available in scripts unless the setting scripts.allow has files");
    let gateway = Gateway::with(rules(&origin.node(), files), json!({ "scripts": { "allow": ["files"] } }));
    assert_eq!(gateway.get("/").text(), "weir");
    let processes = "return function() return 200, tostring(os.execute('true')) end";
    assert_eq!(gateway.reload(rules(&origin.node(), processes)), Reload::Applied);
    assert_eq!(gateway.get("/").status, 500);
}

#[test]
fn a_text_that_does_not_compile_refuses_the_configuration() {
    let origin = Origin::echo();
    let gateway = Gateway::start(rules(&origin.node(), "return function() return 201 end"));
    assert_eq!(gateway.get("/").status, 201);
    for wrong in ["return function() return 202", "return 202", "error('at once')"] {
        assert_eq!(gateway.reload(rules(&origin.node(), wrong)), Reload::Rejected, "{wrong}");
        assert_eq!(gateway.get("/").status, 201);
    }
    assert_eq!(gateway.reload(rules(&origin.node(), "return function() return 203 end")), Reload::Applied);
    assert_eq!(gateway.get("/").status, 203);
}

#[test]
fn calls_that_wait_keep_what_is_theirs() {
    let origin = Origin::echo();
    let function = r#"return function(conf, ctx)
        local own = ctx.var.arg_n
        ngx.ctx.own = own
        ngx.sleep(0.02)
        ngx.req.read_body()
        local body = ngx.req.get_body_data()
        ngx.sleep(0.02)
        assert(ngx.ctx.own == own and ctx.var.arg_n == own)
        ngx.say(own, " ", body)
        ngx.exit(200)
    end"#;
    let gateway = Gateway::start(rules(&origin.node(), function));
    thread::scope(|scope| {
        for n in 0..16 {
            let gateway = &gateway;
            scope.spawn(move || {
                let mut client = gateway.client();
                for round in 0..5 {
                    let answer = client.request(post(&format!("/?n={n}.{round}"), &format!("body {n}")));
                    assert_eq!((answer.status, answer.text()), (200, format!("{n}.{round} body {n}\n")));
                }
            });
        }
    });
}

#[test]
fn a_client_that_goes_ends_a_call_that_waits() {
    let origin = Origin::echo();
    let gateway = Gateway::start(rules(&origin.node(), "return function() ngx.sleep(5) end"));
    for _ in 0..20 {
        let mut client = gateway.client();
        client.send(get("/"));
        drop(client);
    }
    assert_eq!(gateway.reload(rules(&origin.node(), "return function() return 204 end")), Reload::Applied);
    assert_eq!(gateway.get("/").status, 204);
}

#[test]
fn the_log_phase_sees_the_end() {
    let origin = Origin::echo();
    let function = "return function(conf, ctx) ngx.log(ngx.WARN, 'ended ', ngx.status, ' ', ctx.var.uri, ' ', ctx.var.upstream_status) end";
    let gateway = Gateway::start(with_phase(&origin.node(), "log", function));
    assert_eq!(gateway.get("/seen").status, 200);
    gateway.logged("lua: ended 200 /seen 200");
}
