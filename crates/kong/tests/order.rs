//! Compares the order of routes with a naive router, the oracle, on random routes and requests. The oracle goes through
//! all paths of all routes and takes the greatest number that Kong computes; it shares no code with the router.

use fastrand::Rng;
use regex::Regex;
use serde_json::json;
use weir_expr::{Expr, Source, Value, Variable};
use weir_kong::Conditions;
use weir_router::{MethodSet, Mode, Outcome, Params, Query, Router};

#[derive(Clone, Debug, Default)]
struct Route {
    id: u64,
    hosts: Vec<String>,
    methods: Vec<&'static str>,
    /// Names and values.
    headers: Vec<(&'static str, &'static str)>,
    paths: Vec<String>,
    regex_priority: u64,
}

#[derive(Debug)]
struct Request {
    method: &'static str,
    host: &'static str,
    path: &'static str,
    headers: Vec<(&'static str, &'static str)>,
}

impl Source for Request {
    fn variable(&self, variable: &Variable) -> Option<Value<'_>> {
        let Variable::Header(name) = variable else { return None };
        let (_, value) = self.headers.iter().find(|(known, _)| **known == **name)?;
        Some(Value::Bytes(value.as_bytes()))
    }
}

/// The paths of a route; an empty one takes every path.
fn paths(route: &Route) -> Vec<String> {
    if route.paths.is_empty() { vec![String::new()] } else { route.paths.clone() }
}

/// The number of a path as Kong's source computes it, with its shifts of 32 bits.
fn number(route: &Route, path: &str) -> u64 {
    let plain = !route.hosts.is_empty() && route.hosts.iter().all(|host| !host.contains('*'));
    let mut kinds = 0u32;
    for given in [route.hosts.len(), route.methods.len(), route.headers.len(), route.paths.len()] {
        kinds += u32::from(given > 0);
    }
    let is_regex = path.starts_with('~');
    let (shifted, last) = if is_regex { ((route.regex_priority as u32) << 19, 0) } else { (0, path.len() as u32) };
    let low = (kinds << 29) | ((route.headers.len() as u32) << 20) | shifted | last;
    let high = if low >> 31 == 1 { 0xffff_ffff_0000_0000 } else { 0 };
    (u64::from(plain) << 60) | (u64::from(is_regex) << 51) | high | u64::from(low)
}

fn takes(route: &Route, path: &str, request: &Request) -> bool {
    let host = |pattern: &String| match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(end), _) => request.host.ends_with(end),
        (_, Some(start)) => request.host.starts_with(start),
        _ => request.host == pattern,
    };
    let path_fits = match path.strip_prefix('~') {
        Some(regex) => Regex::new(&format!("^{regex}")).expect("a regex").is_match(request.path),
        None => request.path.starts_with(path),
    };
    path_fits
        && (route.hosts.is_empty() || route.hosts.iter().any(host))
        && (route.methods.is_empty() || route.methods.contains(&request.method))
        && route.headers.iter().all(|header| request.headers.contains(header))
}

fn expected(routes: &[Route], request: &Request) -> Option<u64> {
    let all = routes.iter().flat_map(|route| paths(route).into_iter().map(move |path| (route, path)));
    let fitting = all.filter(|(route, path)| takes(route, path, request));
    fitting.map(|(route, path)| (number(route, &path), route.id)).max().map(|(_, id)| id)
}

/// The router as the front end sets it up, with the greater id first; and the ids by number.
fn router(routes: &[Route]) -> (Router, Vec<u64>) {
    let mut routes = routes.to_vec();
    routes.sort_by_key(|route| std::cmp::Reverse(route.id));
    let made = routes.iter().zip(0..).map(|(route, order)| {
        let conditions = Conditions {
            hosts: &route.hosts,
            has_methods: !route.methods.is_empty(),
            headers: route.headers.len(),
            has_snis: false,
            paths: &route.paths,
            regex_priority: route.regex_priority,
        };
        let condition = |(name, value): &(&str, &str)| json!([format!("http_{name}"), "==", value]);
        let vars: Vec<_> = route.headers.iter().map(condition).collect();
        let root = |path: String| if path.is_empty() { "/".to_owned() } else { path };
        weir_router::Route {
            ranks: paths(route).iter().map(|path| conditions.rank(path)).collect(),
            paths: paths(route).into_iter().map(root).collect(),
            hosts: route.hosts.clone(),
            methods: route.methods.iter().filter_map(|method| MethodSet::named(method)).collect(),
            vars: (!vars.is_empty()).then(|| Expr::parse(&json!(vars)).expect("conditions")),
            order,
            ..weir_router::Route::default()
        }
    });
    let router = Router::build(Mode::Ranked, made.collect()).expect("a router");
    (router, routes.iter().map(|route| route.id).collect())
}

/// The id of the route that the router finds, which an explanation has to agree with.
fn found(routes: &[Route], (router, ids): &(Router, Vec<u64>), request: &Request) -> Option<u64> {
    let query = Query {
        method: request.method.as_bytes(),
        host: request.host.as_bytes(),
        host_port: request.host.as_bytes(),
        path: request.path.as_bytes(),
        remote: [10, 0, 0, 1].into(),
        source: request,
    };
    let found = router.find(&query, &mut Params::default()).map(|found| ids[found.route as usize]);
    let steps = router.explain(&query);
    let chosen = steps.iter().find(|step| step.outcome == Outcome::Chosen);
    assert_eq!(chosen.map(|step| ids[step.route as usize]), found, "{request:?}\n{routes:#?}");
    found
}

fn pick<T: Copy>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.usize(..from.len())]
}

fn some<T: Clone + PartialEq>(rng: &mut Rng, from: &[T], most: usize) -> Vec<T> {
    let mut chosen = Vec::new();
    for _ in 0..rng.usize(..=most) {
        let one = from[rng.usize(..from.len())].clone();
        if !chosen.contains(&one) {
            chosen.push(one);
        }
    }
    chosen
}

fn random_route(rng: &mut Rng, id: u64) -> Route {
    let hosts = ["a.t", "b.t", "c.a.t", "*.t", "*.a.t", "a.*", "c.*"].map(str::to_owned);
    let paths = ["/", "/a", "/a/", "/a/b", "/ab", "/a/b/c", "~/a", "~/a/\\w+", "~/(a|b)", "~/a/b$", "~/ab?", "~/(?i)A"];
    let mut headers = some(rng, &[("x", "1"), ("x", "2"), ("y", "1")], 2);
    headers.sort_unstable();
    headers.dedup_by_key(|(name, _)| *name);
    Route {
        id,
        hosts: if rng.bool() { some(rng, &hosts, 2) } else { Vec::new() },
        methods: if rng.u8(..3) == 0 { some(rng, &["GET", "POST"], 2) } else { Vec::new() },
        headers: if rng.u8(..3) == 0 { headers } else { Vec::new() },
        paths: some(rng, &paths.map(str::to_owned), 3),
        regex_priority: pick(rng, &[0, 0, 0, 1, 2, 7, 1024, 4096, 5000, 8192]),
    }
}

#[test]
fn the_router_orders_as_kong_does() {
    let mut rng = Rng::with_seed(7);
    let (mut matched, mut compared) = (0, 0);
    for _ in 0..60 {
        let routes: Vec<Route> = (1..=rng.u64(2..40)).map(|id| random_route(&mut rng, id)).collect();
        let compiled = router(&routes);
        for _ in 0..60 {
            let request = Request {
                method: pick(&mut rng, &["GET", "POST", "PUT"]),
                host: pick(&mut rng, &["a.t", "b.t", "c.a.t", "d.c.a.t", "a.x", "o"]),
                path: pick(&mut rng, &["/", "/a", "/a/", "/a/b", "/a/b/c/d", "/ab", "/abc", "/A", "/b", "/z"]),
                headers: some(&mut rng, &[("x", "1"), ("y", "1")], 2),
            };
            let found = found(&routes, &compiled, &request);
            assert_eq!(found, expected(&routes, &request), "{request:?}\n{routes:#?}");
            matched += usize::from(found.is_some());
            compared += 1;
        }
    }
    assert!(matched * 10 > compared * 5 && matched < compared, "{matched} of {compared}");
}

/// The winners that were seen on a running Kong 3.9.3.
#[test]
fn the_winners_are_those_that_were_seen() {
    type Given = (&'static str, &'static str, bool, &'static str, u64);
    // Host, method, whether a header is asked for, path, regex_priority.
    let cases: &[(&str, &str, &[Given], u64)] = &[
        ("a.w.com", "/w", &[("*.w.com", "", false, "/w", 0), ("a.w.com", "", false, "", 0)], 2),
        (
            "o",
            "/aaaa/bbbb",
            &[
                ("", "", true, "/aaaa", 0),
                ("", "GET", false, "/aaaa", 0),
                ("", "", false, "~/aaaa/b", 0),
                ("", "", false, "/aaaa/bbbb", 0),
            ],
            3,
        ),
        (
            "p.w.com",
            "/q",
            &[("*.w.com", "GET", true, "/q", 0), ("p.w.com", "", false, "~/q", 0), ("p.w.com", "", false, "", 0)],
            1,
        ),
        (
            "z.com",
            "/q",
            &[("", "", false, "~/q", 5000), ("z.com", "", false, "~/q", 0), ("z.com", "GET", false, "/q", 0)],
            1,
        ),
        ("o", "/b", &[("", "", false, "~/b", 2000), ("", "", true, "~/b", 0)], 2),
        (
            "z.com",
            "/a/b",
            &[
                ("z.com", "", false, "", 0),
                ("z.com", "", false, "/a", 0),
                ("z.com", "GET", false, "/a", 0),
                ("z.com", "", false, "~/a/b", 0),
                ("", "GET", true, "~/a", 0),
            ],
            4,
        ),
    ];
    for (host, path, given, winner) in cases {
        let given_text = |text: &'static str| (!text.is_empty()).then(|| text.to_owned()).into_iter().collect();
        let route = |(id, (host, method, has_header, path, regex_priority)): (u64, &Given)| Route {
            id,
            hosts: given_text(host),
            methods: (!method.is_empty()).then_some(*method).into_iter().collect(),
            headers: has_header.then_some(("x", "1")).into_iter().collect(),
            paths: given_text(path),
            regex_priority: *regex_priority,
        };
        let routes: Vec<Route> = (1..).zip(*given).map(route).collect();
        let request = Request { method: "GET", host, path, headers: vec![("x", "1")] };
        let found = found(&routes, &router(&routes), &request);
        assert_eq!((found, expected(&routes, &request)), (Some(*winner), Some(*winner)), "{host}{path}");
    }
}
