//! Compares the router with a naive matcher, the oracle, on random route tables and random requests.
//!
//! The oracle checks every path of every route with a regular expression, keeps those that match, and takes the first
//! in the documented order. It shares no code with the router.

mod random;

use std::cmp::Reverse;

use fastrand::Rng;
use regex::Regex;
use weir_expr::Variable;
use weir_router::{Mode, Outcome, Params, Route, Router};

use crate::random::{Request, random_request, random_route};

/// Route, path, host, and the texts of the path's wildcards.
type Answer = (usize, usize, Option<usize>, Vec<(String, String)>);

fn expected(mode: Mode, routes: &[Route], wildcards: &[Vec<Regex>], request: &Request) -> Option<Answer> {
    let mut fitting = Vec::new();
    for (number, route) in routes.iter().enumerate() {
        let hosts: Vec<_> =
            route.hosts.iter().enumerate().filter_map(|(i, h)| Some((rank(h, request)?, Some(i)))).collect();
        let hosts = match (route.hosts.is_empty(), mode) {
            (true, _) => vec![((9, Reverse(0)), None)],
            (_, Mode::HostUri) => hosts,
            _ => hosts.into_iter().take(1).map(|(_, host)| ((9, Reverse(0)), host)).collect(),
        };
        for (path, regex) in wildcards[number].iter().enumerate() {
            let Some(taken) = regex.is_match(&request.path).then(|| regex.captures(&request.path)).flatten() else {
                continue;
            };
            let named =
                regex.capture_names().flatten().map(|n| (n.to_owned(), taken[n].to_owned())).collect::<Vec<_>>();
            let param = named.iter().find(|(name, _)| name == "x").map(|(_, value)| value.as_str());
            let remote = request.remote.to_canonical();
            let conditions = [
                route.methods.admits(request.method.as_bytes()),
                route.remote_addrs.is_empty() || route.remote_addrs.iter().any(|network| network.contains(&remote)),
                // The last path of a route describes its vars; see `random_route`.
                route.vars.as_ref().is_none_or(|vars| match vars.variables()[0] {
                    Variable::UriParam(_) => param == Some("a"),
                    _ => request.arg == b"1",
                }),
            ];
            if conditions.iter().all(|holds| *holds) {
                let text = &route.paths[path];
                let literal = literal_prefix(mode, text);
                let order = (
                    regex.captures_len() > 1,
                    Reverse(literal),
                    Reverse(route.priority),
                    Reverse(text.len()),
                    route.order,
                );
                fitting.extend(hosts.iter().map(|(rank, host)| (*rank, order, number, path, *host, named.clone())));
            }
        }
    }
    fitting.sort();
    fitting.into_iter().next().map(|(_, _, route, path, host, named)| (route, path, host, named))
}

fn rank(pattern: &str, request: &Request) -> Option<(u8, Reverse<usize>)> {
    let port = pattern.contains(':');
    let host = if port { request.host_port } else { request.host };
    match pattern.strip_prefix('*') {
        Some(suffix) => host.ends_with(suffix).then_some((3 - u8::from(port), Reverse(suffix.len()))),
        None => (host == pattern).then_some((1 - u8::from(port), Reverse(0))),
    }
}

fn is_wild(mode: Mode, segment: &str) -> bool {
    segment.starts_with('*') || mode == Mode::UriWithParameter && segment.starts_with(':')
}

fn literal_prefix(mode: Mode, path: &str) -> usize {
    let before: usize =
        path.split('/').take_while(|segment| !is_wild(mode, segment)).map(|segment| segment.len() + 1).sum();
    before.min(path.trim_end_matches('*').len())
}

/// The path as a regular expression: one group per wildcard, with the name of the wildcard if it has one.
fn to_regex(mode: Mode, path: &str) -> Regex {
    let group = |name: &str, taken: &str| {
        if name.is_empty() { format!("({taken})") } else { format!("(?<{name}>{taken})") }
    };
    let plain = !path.split('/').any(|segment| is_wild(mode, segment));
    let segments = path.split('/').map(|segment| match segment.as_bytes().first() {
        Some(b'*') => group(&segment[1..], "(?s:.)*"),
        Some(b':') if mode == Mode::UriWithParameter => group(&segment[1..], "[^/]+"),
        _ => regex::escape(segment),
    });
    let mut text = segments.collect::<Vec<_>>().join("/");
    if plain && path.ends_with('*') {
        text = format!("{}((?s:.)*)", regex::escape(&path[..path.len() - 1]));
    }
    Regex::new(&format!("^{text}$")).unwrap()
}

#[test]
fn the_router_agrees_with_the_oracle() {
    let mut rng = Rng::with_seed(0x5EED);
    let mut params = Params::default();
    let (mut matched, mut with_params, mut compared) = (0, 0, 0);
    for table in 0..450 {
        let mode = [Mode::HostUri, Mode::Uri, Mode::UriWithParameter][table % 3];
        let routes: Vec<Route> = (0..rng.usize(1..45)).map(|_| random_route(&mut rng)).collect();
        let regexes: Vec<Vec<Regex>> =
            routes.iter().map(|route| route.paths.iter().map(|path| to_regex(mode, path)).collect()).collect();
        let mut canonical = routes.clone();
        for network in canonical.iter_mut().flat_map(|route| &mut route.remote_addrs) {
            if network.to_string() == "::ffff:10.1.2.0/120" {
                *network = "10.1.2.0/24".parse().unwrap();
            }
        }
        let router = Router::build(mode, routes.clone()).unwrap();
        for _ in 0..100 {
            let request = random_request(&mut rng, &routes);
            let query = request.query();
            let answer = router.find(&query, &mut params).map(|found| {
                let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                let named =
                    router.params(&found, &params, query.path).map(|(name, value)| (name.to_owned(), text(value)));
                let named: Vec<_> = named.collect();
                for (name, value) in &named {
                    assert_eq!(router.param(&found, &params, query.path, name), Some(value.as_bytes()));
                }
                (found.route as usize, usize::from(found.path), found.host.map(usize::from), named)
            });
            let context = || format!("{mode:?} {} {} {}", request.method, request.host_port, request.path);
            assert_eq!(answer, expected(mode, &canonical, &regexes, &request), "{}", context());
            compared += 1;
            matched += usize::from(answer.is_some());
            with_params += usize::from(answer.as_ref().is_some_and(|(.., named)| !named.is_empty()));
            // Only some requests are explained, because the explanation examines all routes.
            if rng.u8(..8) == 0 {
                let steps = router.explain(&query);
                let chosen = steps.iter().find(|step| step.outcome == Outcome::Chosen);
                assert_eq!(chosen.map(|step| step.route as usize), answer.map(|(route, ..)| route), "{}", context());
                let fitting = |route: usize| regexes[route].iter().any(|regex| regex.is_match(&request.path));
                for route in 0..routes.len() {
                    let explained = steps.iter().any(|step| step.route as usize == route);
                    assert_eq!(explained, fitting(route), "route {route} of {}", context());
                }
            }
        }
    }
    println!("{compared} compared, {matched} matched, {with_params} with parameters");
    assert!(matched * 10 > compared * 3 && matched * 10 < compared * 9 && with_params * 10 > matched);
}
