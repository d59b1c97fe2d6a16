//! A changed router answers as one built from the same routes, and leaves the previous router unchanged.

mod random;

use std::collections::HashMap;
use std::net::IpAddr;

use fastrand::Rng;
use weir_expr::{Source, Value, Variable};
use weir_router::{BuildError, MethodSet, Mode, Outcome, Params, Query, Route, Router, Step};

use crate::random::{Request, pick, random_request, random_route};

/// Route, path, host, and the texts of the path's wildcards.
type Found = (u32, u16, Option<u16>, Vec<(String, String)>);

/// All answers of a router to a request.
#[derive(Debug, PartialEq)]
struct Answer {
    found: Option<Found>,
    steps: Vec<Step>,
}

/// Answer of a router, with each route's number mapped by `numbers`.
fn answer(router: &Router, request: &Request, numbers: impl Fn(u32) -> u32) -> Answer {
    let query = request.query();
    let mut params = Params::default();
    let found = router.find(&query, &mut params).map(|found| {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let named = router.params(&found, &params, query.path).map(|(name, value)| (name.to_owned(), text(value)));
        (numbers(found.route), found.path, found.host, named.collect())
    });
    let steps = router.explain(&query).into_iter().map(|step| Step { route: numbers(step.route), ..step }).collect();
    Answer { found, steps }
}

#[test]
fn changes_lead_to_what_build_leads_to() {
    let mut rng = Rng::with_seed(0xC4A6);
    let (mut compared, mut matched, mut tried) = (0, 0, 0);
    for sequence in 0..60 {
        let mode = [Mode::HostUri, Mode::Uri, Mode::UriWithParameter][sequence % 3];
        let mut slots: Vec<Option<Route>> = (0..rng.usize(..30)).map(|_| Some(random_route(&mut rng))).collect();
        let mut router = Router::build(mode, slots.iter().flatten().cloned().collect()).unwrap();
        for _ in 0..25 {
            let growing = rng.bool();
            let changes: Vec<(u32, Option<Route>)> = (0..rng.usize(..8))
                .map(|_| {
                    let number = rng.u32(..slots.len() as u32 + 4);
                    (number, (growing || rng.u8(..3) == 0).then(|| random_route(&mut rng)))
                })
                .collect();
            let requests: Vec<Request> = (0..8)
                .map(|_| random_request(&mut rng, &slots.iter().flatten().cloned().collect::<Vec<_>>()))
                .collect();
            let before: Vec<Answer> =
                requests.iter().map(|request| answer(&router, request, |number| number)).collect();
            let changed = router.change(&changes).unwrap();
            for (number, route) in &changes {
                slots.resize(slots.len().max(*number as usize + 1), None);
                slots[*number as usize].clone_from(route);
            }
            let (numbers, routes): (Vec<u32>, Vec<Route>) =
                (0..).zip(&slots).filter_map(|(number, route)| Some((number, route.clone()?))).unzip();
            let built = Router::build(mode, routes.clone()).unwrap();
            for (request, before) in requests.iter().zip(&before) {
                assert_eq!(&answer(&router, request, |number| number), before, "the router before a change");
            }
            for request in requests.into_iter().chain((0..12).map(|_| random_request(&mut rng, &routes))) {
                let expected = answer(&built, &request, |position| numbers[position as usize]);
                let context = || format!("{mode:?} {} {} {}", request.method, request.host_port, request.path);
                assert_eq!(answer(&changed, &request, |number| number), expected, "{} {routes:#?}", context());
                compared += 1;
                matched += usize::from(expected.found.is_some());
                tried += expected.steps.iter().filter(|step| step.outcome != Outcome::NotTried).count();
            }
            router = changed;
        }
    }
    println!("{compared} compared, {matched} matched, {tried} candidates tried");
    assert!(matched * 10 > compared * 3 && tried > compared);
}

/// Kind of lookup that finds a route by its key, and the text that a request may have around the key.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Exact,
    Prefix,
    Suffix,
}

struct Form {
    name: &'static str,
    mode: Mode,
    kind: Kind,
    route: fn(&str) -> Route,
    /// Host and path of a request.
    request: fn(&str) -> (String, String),
}

fn at(host: Option<String>, path: String) -> Route {
    Route { paths: vec![path], hosts: host.into_iter().collect(), ..Route::default() }
}

const FORMS: &[Form] = &[
    Form {
        name: "exact path",
        mode: Mode::Uri,
        kind: Kind::Exact,
        route: |key| at(None, format!("/{key}")),
        request: |key| ("a.t".to_owned(), format!("/{key}")),
    },
    Form {
        name: "prefix",
        mode: Mode::HostUri,
        kind: Kind::Prefix,
        route: |key| at(None, format!("/{key}*")),
        request: |key| ("a.t".to_owned(), format!("/{key}")),
    },
    Form {
        name: "prefix of one host",
        mode: Mode::HostUri,
        kind: Kind::Prefix,
        route: |key| at(Some("*.t".to_owned()), format!("/x/{key}*")),
        request: |key| ("a.t".to_owned(), format!("/x/{key}")),
    },
    Form {
        name: "host",
        mode: Mode::HostUri,
        kind: Kind::Exact,
        route: |key| at(Some(key.to_owned()), "/*".to_owned()),
        request: |key| (key.to_owned(), "/a".to_owned()),
    },
    Form {
        name: "wildcard host",
        mode: Mode::HostUri,
        kind: Kind::Suffix,
        route: |key| at(Some(format!("*{key}")), "/a".to_owned()),
        request: |key| (key.to_owned(), "/a".to_owned()),
    },
    Form {
        name: "text behind a parameter",
        mode: Mode::UriWithParameter,
        kind: Kind::Exact,
        route: |key| at(None, format!("/:id/{key}")),
        request: |key| ("a.t".to_owned(), format!("/7/{key}")),
    },
];

struct Nothing;

impl Source for Nothing {
    fn variable(&self, _: &Variable) -> Option<Value<'_>> {
        None
    }
}

/// Uses enough routes for tables of several shards and trees of several blocks, and compares with a naive lookup in a
/// map of the keys.
#[test]
fn many_routes_come_and_go() {
    for form in FORMS {
        let mut rng = Rng::with_seed(0x3A27);
        // Every number has its own key; every third route takes no GET, so that shorter keys are tried as well.
        let mut numbers: HashMap<String, u32> = HashMap::new();
        let mut keys = Vec::new();
        while keys.len() < 6_000 {
            let key: String = (0..rng.usize(1..13)).map(|_| pick(&mut rng, &['a', 'b', 'c'])).collect();
            numbers.entry(key).or_insert_with_key(|key| {
                keys.push(key.clone());
                keys.len() as u32 - 1
            });
        }
        let takes_get = |number: u32| !number.is_multiple_of(3);
        let route = |number: u32| {
            let methods = if takes_get(number) { MethodSet::ANY } else { MethodSet::named("POST").unwrap() };
            Route { methods, ..(form.route)(&keys[number as usize]) }
        };
        let first = rng.usize(..2_000);
        let mut present: Vec<bool> = (0..keys.len()).map(|number| number < first).collect();
        let mut router = Router::build(form.mode, (0..first as u32).map(route).collect()).unwrap();
        let (mut deepest, mut most) = (0, 0);
        for round in 0..45 {
            let growing = round < 25;
            let mut changes = Vec::new();
            for _ in 0..pick(&mut rng, &[1, 10, 300, 900]) {
                let number = rng.usize(..keys.len());
                present[number] = if growing { rng.u8(..8) != 0 } else { rng.u8(..16) == 0 };
                changes.push((number as u32, present[number].then(|| route(number as u32))));
            }
            if round == 44 {
                present.fill(false);
                changes = (0..keys.len() as u32).map(|number| (number, None)).collect();
            }
            router = router.change(&changes).unwrap();
            most = most.max(present.iter().filter(|present| **present).count());
            for _ in 0..150 {
                let more: String = (0..rng.usize(..4)).map(|_| pick(&mut rng, &['a', 'b', 'c', 'd'])).collect();
                let key = &keys[rng.usize(..keys.len())];
                let text = if form.kind == Kind::Suffix { format!("{more}{key}") } else { format!("{key}{more}") };
                let parts: Vec<&str> = match form.kind {
                    Kind::Exact => vec![&text],
                    Kind::Prefix => (1..=text.len()).rev().map(|end| &text[..end]).collect(),
                    Kind::Suffix => (0..text.len()).map(|start| &text[start..]).collect(),
                };
                let fitting = parts.iter().filter_map(|part| numbers.get(*part).copied());
                let fitting: Vec<u32> = fitting.filter(|number| present[*number as usize]).collect();
                let expected = fitting.iter().copied().find(|number| takes_get(*number));
                let (host, path) = (form.request)(&text);
                let query = Query {
                    method: b"GET",
                    host: host.as_bytes(),
                    host_port: host.as_bytes(),
                    path: path.as_bytes(),
                    remote: IpAddr::from([127, 0, 0, 1]),
                    source: &Nothing,
                };
                let found = router.find(&query, &mut Params::default()).map(|found| found.route);
                assert_eq!(found, expected, "{}, round {round}: {text}", form.name);
                let before = fitting.iter().position(|number| Some(*number) == expected);
                deepest = deepest.max(before.unwrap_or_default());
            }
        }
        assert!(most > 3_000, "{}: {most} routes at most", form.name);
        assert!(form.kind == Kind::Exact || deepest > 3, "{}: {deepest} candidates gave way", form.name);
    }
}

#[test]
fn of_several_changes_of_a_number_the_last_one_counts() {
    let router = Router::build(Mode::Uri, vec![at(None, "/0".to_owned())]).unwrap();
    let changes = [(0, None), (7, Some(at(None, "/7".to_owned()))), (0, Some(at(None, "/new".to_owned()))), (7, None)];
    let router = router.change(&changes).unwrap();
    let found = |path: &'static str| {
        let query = Query {
            method: b"GET",
            host: b"",
            host_port: b"",
            path: path.as_bytes(),
            remote: IpAddr::from([127, 0, 0, 1]),
            source: &Nothing,
        };
        router.find(&query, &mut Params::default()).map(|found| found.route)
    };
    assert_eq!(["/0", "/7", "/new"].map(found), [None, None, Some(0)]);
}

#[test]
fn a_change_with_a_route_that_cannot_be_compiled_is_refused() {
    let router = Router::build(Mode::HostUri, vec![at(None, "/a".to_owned())]).unwrap();
    let changes = [
        (0, None),
        (4, Some(at(None, "/b".to_owned()))),
        (9, Some(Route { hosts: vec!["a.t".to_owned(), "b*c".to_owned()], ..at(None, "/c".to_owned()) })),
    ];
    let error = router.change(&changes).err();
    let message = "host 'b*c' has a '*' that is not its first character".to_owned();
    assert_eq!(error, Some(BuildError { route: 9, path: "hosts[1]".to_owned(), message }));
}
