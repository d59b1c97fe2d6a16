//! Calls of scripts over an exchange, without a data plane.
#![allow(clippy::disallowed_methods, reason = "a test has no worker's clock")]

use std::time::{Duration, Instant};

use weir_plugin::Flow;
use weir_plugin::host::{self, Exchange};
use weir_script::{Form, Hook, Script};
use weir_wire::head::Limits;
use weir_wire::target::PathRules;

/// A request that has come.
fn request() -> Exchange {
    let mut exchange = Exchange::default();
    let request = &mut exchange.request;
    request.buffer.extend(b"GET /a/b?c=d%20e&f HTTP/1.1\r\nHost: a.test\r\nX-A: one\r\nX-Gone: 1\r\n\r\n");
    assert!(request.parse(&Limits::default()).expect("a head").is_some());
    request.accept_head(PathRules::default()).expect("a target");
    exchange
}

fn script(text: &str) -> Script {
    let texts = vec![(Hook::Access, vec![text.to_owned()])];
    Script::check("test", Form::Functions, texts, "{\"phase\":\"access\"}".to_owned())
        .unwrap_or_else(|error| panic!("{text}: {}", error.reason))
}

/// Outcome of a call, and the exchange.
fn run(text: &str) -> (Flow, Exchange) {
    let mut exchange = request();
    let flow = on_worker(|| script(text).run(&mut host::request(&mut exchange), Hook::Access));
    (flow, exchange)
}

/// Does work on the runtime of a worker.
fn on_worker<R>(work: impl FnOnce() -> R) -> R {
    weir_runtime::block_on(async { work() }).expect("a runtime")
}

/// Status and body of the answer that a call makes.
fn answer(text: &str) -> (u16, String) {
    let (flow, exchange) = run(text);
    assert!(matches!(flow, Flow::Respond(_)), "{text}: {flow:?}");
    (exchange.response.status(), String::from_utf8_lossy(&exchange.response.body).into_owned())
}

fn is_failed(text: &str) -> bool {
    matches!(run(text).0, Flow::Abort(failure) if failure.status == 500)
}

#[test]
fn fields_are_read_and_set() {
    let (flow, exchange) = run("return function(conf, ctx)
            local core = require('apisix.core')
            core.request.set_header(ctx, 'X-Seen', core.request.header(ctx, 'x-a') .. ngx.var.http_x_a .. ctx.var.arg_c)
            core.request.set_header('X-Phase', conf.phase .. ngx.get_phase())
            ngx.req.set_header('X-List', {'a', 2})
            ngx.req.clear_header('X-Gone')
            ngx.req.set_header('X-Line', 'a\\r\\nX-B: b')
        end");
    assert_eq!(flow, Flow::Continue);
    let field = |name: &str| exchange.request.field_str(name).map(|value| String::from_utf8_lossy(value).into_owned());
    assert_eq!(field("x-seen").as_deref(), Some("oneoned e"));
    assert_eq!(field("x-phase").as_deref(), Some("accessaccess"));
    assert_eq!(field("x-list").as_deref(), Some("a"));
    assert_eq!(field("x-line").as_deref(), Some("aX-B: b"));
    assert_eq!([field("x-gone"), field("x-b")], [None, None]);
}

#[test]
fn answers_are_made_in_each_way() {
    for (text, status, body) in [
        ("return function() return 418, {message = 'short'} end", 418, "{\"message\":\"short\"}\n"),
        ("return function() return 402 end", 402, ""),
        ("return function() return nil, 'text' end", 200, "text"),
        ("return function() require('apisix.core').response.exit(403, 'no') end", 403, "no"),
        ("return function() ngx.status = 201 ngx.say('a', 1, true) ngx.exit(201) end", 201, "a1true\n"),
        ("return function() pcall(ngx.exit, 204) ngx.say('reached') end", 204, ""),
        ("return function() kong.response.exit(429, {message = 'slow'}) end", 429, "{\"message\":\"slow\"}"),
        (
            "return function() return 200, ngx.req.get_uri_args().c .. tostring(ngx.req.get_uri_args().f) end",
            200,
            "d etrue",
        ),
    ] {
        assert_eq!(answer(text), (status, body.to_owned()), "{text}");
    }
}

#[test]
fn texts_are_worked_on_as_in_openresty() {
    for (expression, value) in [
        ("('key=value'):match('^(%w+)=(%w+)$')", "key"),
        ("(('a.b.c'):gsub('%.', '-'))", "a-b-c"),
        ("select(2, ('x[1]'):find('[', 1, true))", "2"),
        ("('f(a(b)c)'):match('%b()')", "(a(b)c)"),
        ("('THE (quick) fox'):match('%((%a+)%)')", "quick"),
        ("(('hello world'):gsub('o', '%0%0', 1))", "helloo world"),
        ("(('abc'):gsub('', '-'))", "-a-b-c-"),
        ("('  x '):match('^%s*(.-)%s*$')", "x"),
        ("('aXb'):find('%u')", "2"),
        ("('THE (quick) fox'):find('%f[%a]%a+%f[%A]', 5)", "6"),
        ("ngx.md5('a')", "0cc175b9c0f1b6a831c399e269772661"),
        ("require('resty.string').to_hex(ngx.sha1_bin('a'))", "86f7e437faa5a7fce15d1ddcb9eaeaea377667b8"),
        ("ngx.encode_base64('ab') .. ngx.decode_base64('YWI=')", "YWI=ab"),
        ("ngx.escape_uri('a b/ä') .. ngx.unescape_uri('a+b%2F')", "a%20b%2F%C3%A4a b/"),
        ("ngx.re.match('id=42;', [[id=(?<id>\\d+)]], 'jo').id", "42"),
        ("(ngx.re.gsub('a1b22', [[\\d+]], '<$0>'))", "a<1>b<22>"),
        ("require('ngx.re').split('a, b,c', [[,\\s*]])[3]", "c"),
        (
            "require('cjson').encode(require('cjson').decode('{\"a\":[1,2.5,null,true,\"x\"]}'))",
            "{\"a\":[1,2.5,null,true,\"x\"]}",
        ),
        ("require('cjson').encode({require('cjson').empty_array, {}})", "[[],{}]"),
        ("tostring(require('cjson.safe').decode('{'))", "nil"),
        ("tostring(ngx.null == require('cjson').null)", "true"),
        ("table.concat({1, 2}, '+') .. bit.band(6, 3)", "1+22"),
        ("string.format('%05.1f', 3.14159)", "003.1"),
        ("tostring(pcall(error, 'x'))", "false"),
        ("loadstring('return 1 + 1')()", "2"),
        ("tostring(loadstring('\\27LJ'))", "nil"),
    ] {
        let text = format!("return function() return 200, tostring((function() return {expression} end)()) end");
        assert_eq!(answer(&text), (200, value.to_owned()), "{expression}");
    }
}

#[test]
fn a_call_has_a_budget() {
    for text in [
        "return function() while true do end end",
        "return function() while true do pcall(function() while true do end end) end end",
        "return function() while true do xpcall(function() while true do end end, function() while true do end end) end end",
        "return function() while true do coroutine.resume(coroutine.create(function() while true do end end)) end end",
        "return function() return ('a'):rep(200):find(('.-'):rep(30) .. 'b') end",
        "return function() while true do (''):rep(2 ^ 31 - 1) end end",
        "return function() while true do (''):rep(-2 ^ 31 - 1) end end",
        "return function() local s = ('x'):rep(2 ^ 20) while true do s:upper() end end",
        "return function() local s = ('x'):rep(2 ^ 20) while true do local t = s .. 'y' end end",
        "return function() local s = ('x'):rep(2 ^ 20) while true do s:find('y', 1, true) end end",
        "return function() local s = ('x'):rep(2 ^ 20) while true do s:find(('x'):rep(2 ^ 19) .. 'y') end end",
        "return function() local s = ('x'):rep(2 ^ 20) while true do s:find('[' .. ('y'):rep(2 ^ 19) .. ']') end end",
        "return function() local s = ('x'):rep(2 ^ 20) while true do ngx.md5(s) end end",
        "return function() local s = ('x'):rep(2 ^ 20) while true do ngx.re.find(s, 'y') end end",
        "return function() local i = 0 while true do i = i + 1 ngx.re.find('', [[\\w{100}]] .. i) end end",
        "return function() local s = ('x'):rep(2 ^ 20) while true do ngx.req.set_header('X-A', s) end end",
        "return function() local s = '\"' .. ('x'):rep(2 ^ 20) .. '\"' while true do require('cjson').decode(s) end end",
        "return function() local s = '--' .. ('x'):rep(2 ^ 20) while true do loadstring(s) end end",
        "return function() local t = {} for i = 1, 2 ^ 16 do t[i] = '' end while true do table.concat(t) end end",
        "return function() local t = {} for i = 1, 2 ^ 16 do t[i] = 0 end while true do table.sort(t) end end",
        "return function() local t = {} for i = 1, 2 ^ 16 do t[i] = 0 end while true do table.insert(t, 1, 0) end end",
        "return function() local s = 'x' while true do s = s .. s end end",
        "return function() local t = {} for i = 1, 40 do t[i] = ('x'):rep(1000000) .. i end end",
    ] {
        let began = Instant::now();
        assert!(is_failed(text), "{text}");
        assert!(began.elapsed() < Duration::from_secs(8), "{text}: {:?}", began.elapsed());
    }
    // Others go on.
    assert_eq!(answer("return function() return 200, 'well' end"), (200, "well".to_owned()));
}

#[test]
fn what_is_not_there_fails() {
    for text in [
        "return function() return ngx.location.capture('/') end",
        "return function() return io.open('/etc/passwd') end",
        "return function() return os.getenv('PATH') end",
        "return function() return os.execute('true') end",
        "return function() return debug.getinfo(1) end",
        "return function() return require('ffi') end",
        "return function() return kong.nothing() end",
        "return function() ngx.req.set_header('Transfer-Encoding', 'chunked') end",
        "return function() coroutine.yield() end",
        "return function() local x = nil return x.y end",
    ] {
        assert!(is_failed(text), "{text}");
    }
}

#[test]
fn texts_are_checked_when_they_are_loaded() {
    for (text, says) in [
        ("return", "only accept Lua function, the input code type is nil"),
        ("x =", "unexpected symbol"),
        ("error('at once')", "at once"),
        ("while true do end", "scripts.instructions"),
        ("\u{1b}LJ", "binary chunk"),
    ] {
        let texts = vec![(Hook::Access, vec!["return function() end".to_owned(), text.to_owned()])];
        let error = Script::check("test", Form::Functions, texts, String::new()).expect_err(text);
        assert_eq!(error.at, 1, "{text}");
        assert!(error.reason.contains(says), "{text}: {}", error.reason);
    }
}

#[test]
fn a_call_that_needs_the_body_goes_on_with_it() {
    let mut exchange = Exchange::default();
    let request = &mut exchange.request;
    request.buffer.extend(b"POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 4\r\n\r\nbody");
    assert!(request.parse(&Limits::default()).expect("a head").is_some());
    request.accept_head(PathRules::default()).expect("a target");
    let script = script(
        "return function()
            local co = coroutine.wrap(function() ngx.req.read_body() coroutine.yield(ngx.req.get_body_data()) end)
            return 200, co()
        end",
    );
    on_worker(|| {
        assert_eq!(script.run(&mut host::request(&mut exchange), Hook::Access), Flow::AwaitBody);
        exchange.request.keep_body(4);
        assert!(matches!(script.run(&mut host::request(&mut exchange), Hook::Access), Flow::Respond(_)));
    });
    assert_eq!(exchange.response.body, b"body");
}
