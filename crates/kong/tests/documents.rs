//! Compares the order of routes of whole documents, with SNIs and expressions, with a naive router, the oracle: documents go
//! through the front end, and their items through the router.

use fastrand::Rng;
use regex::Regex;
use serde_json::{Value as Json, json};
use weir_config::{FrontEnd, Node, ResourceKind};
use weir_expr::{Expr, Source, Value, Variable};
use weir_kong::Kong;
use weir_router::{MethodSet, Mode, Params, Query, Router};

#[derive(Clone, Debug, Default)]
struct Route {
    number: u64,
    hosts: Vec<&'static str>,
    methods: Vec<&'static str>,
    header: Option<&'static str>,
    snis: Vec<&'static str>,
    paths: Vec<&'static str>,
    /// Takes the place of all of them, with its priority.
    expression: Option<(Part, u64)>,
}

/// A part of an expression.
#[derive(Clone, Debug)]
enum Part {
    Starts(&'static str),
    Is(&'static str),
    Matches(&'static str),
    Method(&'static str),
    Host(&'static str),
    Header(&'static str),
    Sni(&'static str),
    Both(Box<Part>, Box<Part>),
    Either(Box<Part>, Box<Part>),
    Not(Box<Part>),
}

#[derive(Debug)]
struct Request {
    method: &'static str,
    host: &'static str,
    path: &'static str,
    header: Option<&'static str>,
    /// The name of the handshake; `None` inside: a handshake without a name.
    tls: Option<Option<&'static str>>,
}

impl Source for Request {
    fn variable(&self, variable: &Variable) -> Option<Value<'_>> {
        let text = |text: &'static str| Some(Value::Bytes(text.as_bytes()));
        match variable {
            Variable::Header(name) if **name == *"x" => self.header.and_then(text),
            Variable::Scheme => text(if self.tls.is_some() { "https" } else { "http" }),
            Variable::SslServerName => self.tls.flatten().and_then(text),
            Variable::RequestMethod => text(self.method),
            Variable::Host => text(self.host),
            Variable::Uri => text(self.path),
            _ => None,
        }
    }
}

impl Part {
    fn text(&self) -> String {
        match self {
            Self::Starts(path) => format!("http.path ^= \"{path}\""),
            Self::Is(path) => format!("http.path == \"{path}\""),
            Self::Matches(regex) => format!("http.path ~ r#\"{regex}\"#"),
            Self::Method(method) => format!("http.method == \"{method}\""),
            Self::Host(host) => format!("http.host == \"{host}\""),
            Self::Header(value) => format!("http.headers.x == \"{value}\""),
            Self::Sni(name) => format!("tls.sni == \"{name}\""),
            Self::Both(one, other) => format!("({}) && ({})", one.text(), other.text()),
            Self::Either(one, other) => format!("({}) || ({})", one.text(), other.text()),
            Self::Not(inner) => format!("!({})", inner.text()),
        }
    }

    fn holds(&self, request: &Request) -> bool {
        match self {
            Self::Starts(path) => request.path.starts_with(path),
            Self::Is(path) => request.path == *path,
            Self::Matches(regex) => Regex::new(regex).expect("a regex").is_match(request.path),
            Self::Method(method) => request.method == *method,
            Self::Host(host) => request.host == *host,
            Self::Header(value) => request.header == Some(value),
            Self::Sni(name) => request.tls.flatten() == Some(name),
            Self::Both(one, other) => one.holds(request) && other.holds(request),
            Self::Either(one, other) => one.holds(request) || other.holds(request),
            Self::Not(inner) => !inner.holds(request),
        }
    }
}

/// A name with a wildcard at either end.
fn names(pattern: &str, name: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(end), _) => name.ends_with(end),
        (_, Some(start)) => name.starts_with(start),
        _ => name == pattern,
    }
}

/// The number of a path: that of an expression is above all others.
fn number(route: &Route, path: &str) -> u128 {
    if let Some((_, priority)) = &route.expression {
        return 1 << 64 | u128::from(*priority);
    }
    let plain = !route.hosts.is_empty() && route.hosts.iter().all(|host| !host.contains('*'));
    let given = [
        !route.hosts.is_empty(),
        !route.methods.is_empty(),
        route.header.is_some(),
        !route.snis.is_empty(),
        !route.paths.is_empty(),
    ];
    let kinds = given.into_iter().map(u32::from).sum::<u32>();
    let is_regex = path.starts_with('~');
    let low = kinds << 29 | u32::from(route.header.is_some()) << 20 | if is_regex { 0 } else { path.len() as u32 };
    let high = if low >> 31 == 1 { 0xffff_ffff_0000_0000 } else { 0 };
    u128::from(u64::from(plain) << 60 | u64::from(is_regex) << 51 | high | u64::from(low))
}

fn takes(route: &Route, path: &str, request: &Request) -> bool {
    if let Some((expression, _)) = &route.expression {
        return expression.holds(request);
    }
    let path_fits = match path.strip_prefix('~') {
        Some(regex) => Regex::new(&format!("^{regex}")).expect("a regex").is_match(request.path),
        None => request.path.starts_with(path),
    };
    // SNIs are no condition for requests without TLS.
    let sni_fits = match request.tls {
        Some(name) if !route.snis.is_empty() => name.is_some_and(|name| route.snis.iter().any(|sni| names(sni, name))),
        _ => true,
    };
    path_fits
        && sni_fits
        && (route.hosts.is_empty() || route.hosts.iter().any(|host| names(host, request.host)))
        && (route.methods.is_empty() || route.methods.contains(&request.method))
        && route.header.is_none_or(|value| request.header == Some(value))
}

fn expected(routes: &[Route], request: &Request) -> Option<u64> {
    let paths = |route: &Route| if route.paths.is_empty() { vec![""] } else { route.paths.clone() };
    let all = routes.iter().flat_map(|route| paths(route).into_iter().map(move |path| (route, path)));
    let fitting = all.filter(|(route, path)| takes(route, path, request));
    fitting.map(|(route, path)| (number(route, path), route.number)).max().map(|(_, number)| number)
}

fn document(routes: &[Route]) -> Json {
    let written = |route: &Route| {
        let id = format!("00000000-0000-4000-8000-{:012}", route.number);
        let mut written = json!({ "id": id, "name": route.number.to_string() });
        if let Some((expression, priority)) = &route.expression {
            written["expression"] = expression.text().into();
            written["priority"] = (*priority).into();
            return written;
        }
        for (field, values) in
            [("hosts", &route.hosts), ("methods", &route.methods), ("snis", &route.snis), ("paths", &route.paths)]
        {
            if !values.is_empty() {
                written[field] = json!(values);
            }
        }
        if let Some(value) = route.header {
            written["headers"] = json!({ "x": [value] });
        }
        written
    };
    let routes: Vec<Json> = routes.iter().map(written).collect();
    json!({ "_format_version": "3.0", "services": [{ "name": "s", "url": "http://a", "routes": routes }] })
}

/// The router of a document, and the numbers of its routes.
fn router(routes: &[Route]) -> (Router, Vec<Option<u64>>) {
    let text = document(routes).to_string();
    let mut found = Vec::new();
    let lowered = Kong.lower(Node::parse(&text).expect("JSON").root, &|_: &str| None, &mut found);
    assert!(found.iter().all(|one| !one.is_error()), "{found:?}\n{text}");
    let (mut made, mut numbers) = (Vec::new(), Vec::new());
    for ((item, entity), order) in lowered.items(ResourceKind::Routes).zip(0..) {
        let matching = entity.and_then(|entity| entity.matching.clone()).expect("conditions");
        let methods = item.get("methods").and_then(Node::as_seq).unwrap_or_default();
        let vars = item.get("vars").map(|vars| Expr::parse(&vars.to_json()).expect("conditions"));
        made.push(weir_router::Route {
            ranks: matching.ranks,
            paths: matching.paths,
            hosts: matching.hosts,
            methods: methods.iter().filter_map(|method| MethodSet::named(method.as_str()?)).collect(),
            vars,
            order,
            ..weir_router::Route::default()
        });
        numbers.push(item.get("name").and_then(Node::as_str).and_then(|name| name.parse().ok()));
    }
    (Router::build(Mode::Ranked, made).expect("a router"), numbers)
}

fn pick<T: Clone>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.usize(..from.len())].clone()
}

fn some<T: Clone + PartialEq>(rng: &mut Rng, from: &[T], most: usize) -> Vec<T> {
    let mut chosen = Vec::new();
    for _ in 0..rng.usize(..=most) {
        let one = pick(rng, from);
        if !chosen.contains(&one) {
            chosen.push(one);
        }
    }
    chosen
}

fn random_part(rng: &mut Rng, depth: u32) -> Part {
    let path = pick(rng, &["/", "/a", "/a/b", "/ab"]);
    if depth < 3 && rng.bool() {
        let mut inner = || Box::new(random_part(rng, depth + 1));
        let (one, other) = (inner(), inner());
        return match rng.u8(..5) {
            0 | 1 => Part::Either(one, other),
            2 => Part::Not(one),
            _ => Part::Both(one, other),
        };
    }
    match rng.u8(..7) {
        0 | 1 => Part::Starts(path),
        2 => Part::Is(path),
        3 => Part::Matches(pick(rng, &["^/a/\\w+", "^/(a|b)$", "b$"])),
        4 => Part::Method(pick(rng, &["GET", "POST"])),
        5 => pick(rng, &[Part::Host("a.t"), Part::Sni("a.t"), Part::Sni("b.t")]),
        _ => Part::Header("1"),
    }
}

fn random_route(rng: &mut Rng, number: u64) -> Route {
    if rng.u8(..4) == 0 {
        let priority = pick(rng, &[0, 0, 1, 7, 1 << 40]);
        return Route { number, expression: Some((random_part(rng, 0), priority)), ..Route::default() };
    }
    let route = Route {
        number,
        hosts: if rng.bool() { some(rng, &["a.t", "b.t", "*.t", "a.*"], 2) } else { Vec::new() },
        methods: if rng.u8(..3) == 0 { some(rng, &["GET", "POST"], 2) } else { Vec::new() },
        header: (rng.u8(..4) == 0).then(|| pick(rng, &["1", "2"])),
        snis: if rng.bool() { some(rng, &["a.t", "b.t", "*.t", "a.*"], 2) } else { Vec::new() },
        paths: some(rng, &["/", "/a", "/a/b", "/ab", "~/a", "~/a/\\w+", "~/(a|b)$"], 2),
        expression: None,
    };
    let is_empty = route.hosts.is_empty() && route.methods.is_empty() && route.header.is_none();
    // A route needs a condition.
    if is_empty && route.snis.is_empty() && route.paths.is_empty() {
        Route { paths: vec!["/"], ..route }
    } else {
        route
    }
}

#[test]
fn documents_with_snis_and_expressions_are_routed_as_kong_does() {
    let mut rng = Rng::with_seed(11);
    let (mut matched, mut by_expression, mut with_tls, mut compared) = (0, 0, 0, 0);
    for _ in 0..80 {
        let routes: Vec<Route> = (1..=rng.u64(2..30)).map(|number| random_route(&mut rng, number)).collect();
        let (compiled, numbers) = router(&routes);
        for _ in 0..60 {
            let request = Request {
                method: pick(&mut rng, &["GET", "POST", "PUT"]),
                host: pick(&mut rng, &["a.t", "b.t", "a.x", "o"]),
                path: pick(&mut rng, &["/", "/a", "/a/b", "/a/b/c", "/ab", "/b", "/z"]),
                header: pick(&mut rng, &[None, Some("1"), Some("2")]),
                tls: pick(&mut rng, &[None, Some(None), Some(Some("a.t")), Some(Some("b.t")), Some(Some("c.x"))]),
            };
            let query = Query {
                method: request.method.as_bytes(),
                host: request.host.as_bytes(),
                host_port: request.host.as_bytes(),
                path: request.path.as_bytes(),
                remote: [10, 0, 0, 1].into(),
                source: &request,
            };
            let found = compiled.find(&query, &mut Params::default()).and_then(|found| numbers[found.route as usize]);
            let wanted = expected(&routes, &request);
            assert_eq!(found, wanted, "{request:?}\n{}", document(&routes));
            let chosen = wanted.and_then(|number| routes.iter().find(|route| route.number == number));
            matched += usize::from(wanted.is_some());
            by_expression += usize::from(chosen.is_some_and(|route| route.expression.is_some()));
            with_tls += usize::from(request.tls.is_some() && chosen.is_some_and(|route| !route.snis.is_empty()));
            compared += 1;
        }
    }
    assert!(matched * 2 > compared && matched < compared, "{matched} of {compared}");
    assert!(by_expression > 300 && with_tls > 300, "{by_expression} by expressions, {with_tls} by SNIs");
}
