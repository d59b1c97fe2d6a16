//! Incremental compilation with resources left out gives the same configuration as compiling everything.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use fastrand::Rng;
use weir_config::Settings;
use weir_proxy::{ExplainRequest, Snapshot};
use weir_store::{Change, Commit, Event, Item, Key, Listing};

use super::State;
use crate::source::rules::Rules;

const CHANGES: u64 = 120;
const SEEDS: u64 = 3;

fn key(text: &str) -> Key {
    text.parse().expect("a key")
}

fn item(place: &str, value: &str, revision: u64) -> Item {
    Item { key: key(place), value: value.into(), created: revision, modified: revision }
}

/// A resource and its new value; `None` deletes the resource.
type Put = (String, Option<String>);

/// A state that follows the events of a store.
struct Follower {
    rules: Rules,
    state: State,
    snapshot: std::sync::Arc<Snapshot>,
    /// Number of incremental compilations.
    steps: usize,
}

impl Follower {
    fn new() -> Self {
        let rules = Rules::of_store(&Settings::default());
        let (state, ready) = State::first(&rules, Listing::default()).expect("nothing");
        Self { rules, state, snapshot: ready.snapshot, steps: 0 }
    }

    /// Applies changes. Returns true if the result can be served.
    fn follow(&mut self, revision: u64, changes: &[Put], whole: bool) -> bool {
        let change = |(place, value): &Put| (key(place), value.as_ref().map(|value| item(place, value, revision)));
        self.state.follow(Event::Committed { revision, changes: changes.iter().map(change).collect() });
        if whole {
            self.state.steps = None;
        }
        let Ok(candidate) = self.state.compile(&self.rules) else { return false };
        self.steps += usize::from(candidate.places.is_some());
        self.snapshot = self.state.record_served(&self.rules, candidate).1.snapshot;
        self.rules.compiler.sweep();
        true
    }

    fn broken(&self) -> BTreeSet<String> {
        self.state.broken.iter().map(ToString::to_string).collect()
    }

    /// The explanations of requests.
    fn explained(&self) -> Vec<String> {
        let explain = |path: &str| {
            let request = ExplainRequest {
                https: false,
                method: "GET".to_owned(),
                host: "a.test".to_owned(),
                target: path.to_owned(),
                headers: vec![("apikey".to_owned(), "k1".to_owned())],
                remote: IpAddr::V4(Ipv4Addr::LOCALHOST),
            };
            format!("{:#?}", self.snapshot.explain(&request, &Settings::default()).expect("a request"))
        };
        ["/1", "/2", "/3", "/4", "/x"].map(explain).into()
    }
}

/// A random creation, change or deletion of a resource, often an invalid one.
fn random_change(random: &mut Rng) -> Put {
    let (id, other) = (random.u8(1..5), random.u8(1..5));
    let section = *random
        .choice(&[
            "routes",
            "routes",
            "services",
            "upstreams",
            "plugin_configs",
            "consumers",
            "credentials",
            "global_rules",
        ])
        .expect("a section");
    let place = match section {
        "consumers" => format!("consumers/c{id}"),
        "credentials" => format!("consumers/c{id}/credentials/d"),
        section => format!("{section}/{id}"),
    };
    let mock = format!(r#""plugins":{{"mocking":{{"response_example":"{other} {}"}}}}"#, random.u8(0..9));
    let value = match random.u8(0..12) {
        0 | 1 => return (place, None),
        2 => "{".to_owned(),
        3 => r#"{"plugins":{"no-such-plugin":{}},"uri":"/x","nodes":{},"username":1}"#.to_owned(),
        _ => match section {
            "routes" => match random.u8(0..4) {
                0 => format!(r#"{{"uri":"/{id}","upstream_id":"{other}"}}"#),
                1 => format!(r#"{{"uri":"/{id}","service_id":"{other}",{mock}}}"#),
                2 => format!(
                    r#"{{"uri":"/{id}","plugin_config_id":"{other}","upstream":{{"nodes":{{"127.0.0.1:{other}":1}}}}}}"#
                ),
                _ => format!(r#"{{"uri":"/{id}",{mock}}}"#),
            },
            "services" if random.bool() => format!(r#"{{"upstream_id":"{other}",{mock}}}"#),
            "services" | "plugin_configs" => format!("{{{mock}}}"),
            "upstreams" => format!(r#"{{"nodes":{{"127.0.0.1:{other}":1}}}}"#),
            "consumers" => format!(r#"{{"username":"c{id}","plugins":{{"key-auth":{{"key":"k{id}"}}}}}}"#),
            "credentials" => format!(r#"{{"plugins":{{"key-auth":{{"key":"d{id}-{other}"}}}}}}"#),
            // A global rule that was never valid would keep everything from being served.
            _ => r#"{"plugins":{}}"#.to_owned(),
        },
    };
    if section == "global_rules" && value != r#"{"plugins":{}}"# {
        return (place, None);
    }
    (place, Some(value))
}

#[test]
fn any_sequence_of_changes_serves_what_the_whole_would() {
    let (mut steps, mut with_broken) = (0, 0);
    for seed in 0..SEEDS {
        let mut random = Rng::with_seed(seed);
        let (mut follower, mut whole) = (Follower::new(), Follower::new());
        for revision in 1..=CHANGES {
            let mut changes: Vec<_> = (0..random.usize(1..3)).map(|_| random_change(&mut random)).collect();
            changes.dedup_by(|a, b| a.0 == b.0);
            let at = || format!("seed {seed}, revision {revision}: {changes:#?}");
            assert_eq!(follower.follow(revision, &changes, false), whole.follow(revision, &changes, true), "{}", at());
            assert_eq!(follower.broken(), whole.broken(), "{}", at());
            assert!(follower.state.resources.iter().eq(whole.state.resources.iter()), "{}", at());
            assert_eq!(follower.state.inventory(), whole.state.inventory(), "{}", at());
            for (found, expected) in follower.explained().iter().zip(whole.explained()) {
                assert_eq!(*found, expected, "{}", at());
            }
            with_broken += usize::from(!follower.broken().is_empty());
        }
        assert_eq!(whole.steps, 0);
        steps += follower.steps;
    }
    assert!(steps > 100 && with_broken > 100, "{steps} steps, {with_broken} with something broken");
}

#[test]
fn what_is_left_out_makes_other_changes_no_dearer() {
    let mut follower = Follower::new();
    let put = |place: &str, value: &str| (place.to_owned(), Some(value.to_owned()));
    let mock = r#""plugins":{"mocking":{"response_example":"x"}}"#;
    let serves = |follower: &Follower, path: &str| {
        follower.explained().iter().any(|text| text.contains(&format!("{path:?}")) && !text.contains("route: None"))
    };
    // The changes, true if they are compiled incrementally, and the broken resources afterwards.
    let cases: &[(&[Put], bool, &[&str])] = &[
        (&[put("routes/1", &format!(r#"{{"uri":"/1",{mock}}}"#))], true, &[]),
        (&[put("routes/2", r#"{"uri":"/2","upstream_id":"2"}"#)], false, &["routes/2"]),
        (&[put("routes/3", &format!(r#"{{"uri":"/3",{mock}}}"#))], true, &["routes/2"]),
        // A resource that was valid serves in that version.
        (&[put("routes/1", "{")], false, &["routes/1", "routes/2"]),
        (&[put("services/1", "{}")], true, &["routes/1", "routes/2"]),
        (&[("routes/3".to_owned(), None)], true, &["routes/1", "routes/2"]),
        // A resource that another one refers to, which a third one refers to.
        (&[put("routes/4", r#"{"uri":"/4","service_id":"4"}"#)], false, &["routes/1", "routes/2", "routes/4"]),
        (&[put("services/4", r#"{"upstream_id":"2"}"#)], false, &["routes/1", "routes/2", "routes/4", "services/4"]),
        (&[put("upstreams/2", r#"{"nodes":{"127.0.0.1:1":1}}"#)], true, &["routes/1"]),
        (&[put("routes/1", &format!(r#"{{"uri":"/1",{mock},"priority":1}}"#))], true, &[]),
    ];
    for (number, (changes, steps, broken)) in cases.iter().enumerate() {
        let before = follower.steps;
        assert!(follower.follow(number as u64 + 1, changes, false), "{changes:?}");
        assert_eq!(follower.broken(), broken.iter().map(|key| (*key).to_owned()).collect(), "{changes:?}");
        assert_eq!(follower.steps > before, *steps, "{changes:?}");
        assert!(serves(&follower, "/1"), "{changes:?}");
    }
    for path in ["/2", "/4"] {
        assert!(serves(&follower, path), "{path}: {:#?}", follower.explained());
    }
}

#[test]
fn a_change_of_a_broken_resource_is_judged_as_any() {
    let rules = Rules::of_store(&Settings::default());
    let items = vec![
        item("routes/1", r#"{"uri":"/1","upstream_id":"none"}"#, 1),
        item("upstreams/1", r#"{"nodes":{"127.0.0.1:1":1}}"#, 1),
        item("routes/2", r#"{"uri":"/2","upstream_id":"1"}"#, 1),
    ];
    let (mut state, _) = State::first(&rules, Listing { cluster: 0, revision: 1, items }).expect("a state");
    assert!(state.base.is_some(), "it can be changed piece by piece");
    let cases = [
        ("routes/1", Some(r#"{"uri":"/1","upstream_id":"1"}"#), true, 0),
        ("routes/1", Some(r#"{"uri":"/1","upstream_id":"nor this"}"#), false, 0),
        ("routes/1", None, true, 0),
        ("routes/3", Some(r#"{"uri":"/3","upstream_id":"1"}"#), true, 1),
        ("routes/3", Some(r#"{"uri":"/3","upstream_id":"none"}"#), false, 0),
        ("upstreams/none", Some(r#"{"nodes":{"127.0.0.1:1":1}}"#), true, 0),
        ("upstreams/1", None, false, 0),
    ];
    for (place, value, good, broken) in cases {
        let change = Change { key: key(place), value: value.map(Into::into), expires: None };
        let commit = Commit { changes: vec![change], ..Commit::default() };
        match state.check(&rules, &commit, false) {
            Ok((candidate, undo)) => {
                assert!(good, "{place} {value:?} is not refused");
                assert_eq!(candidate.broken.len(), broken, "{place} {value:?}");
                assert!(candidate.places.is_some(), "{place} {value:?}: only that is compiled");
                state.resources.undo(undo);
            }
            Err(refused) => assert!(!good, "{place} {value:?}: {refused:?}"),
        }
    }
}
