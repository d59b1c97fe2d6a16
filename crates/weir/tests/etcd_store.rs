//! The store in etcd, against real members: no event is lost and none is reported twice, whatever happens to the members.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::json;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;
use weir_store::{
    Change, Commit, Difference, Etcd, EtcdOptions, Event, Expectation, HistoryQuery, Item, Key, Keyring, Kind, Listing,
    NoSecrets, Recorded, Sealing, Store, StoreError,
};

use crate::harness::{Answer, EtcdCluster, LIMIT, Origin, Relay, wait_until};

fn options(hosts: Vec<String>) -> EtcdOptions {
    EtcdOptions {
        hosts,
        prefix: "/apisix".to_owned(),
        user: None,
        timeout: Duration::from_secs(3),
        watch_timeout: Duration::from_secs(5),
        health_check_interval: Duration::from_millis(300),
        resync_delay: Duration::from_millis(50),
        tls: Arc::new(weir_proxy::client_config(None, None).expect("TLS")),
        tls_words: weir_proxy::tls_words,
        server_name: None,
        history: 100_000,
        sealing: Sealing {
            keyring: Arc::new(Keyring::new([]).expect("the known keys")),
            secrets: Arc::new(NoSecrets),
            fields: false,
        },
    }
}

fn key(text: &str) -> Key {
    text.parse().expect("a key")
}

fn put(text: &str, value: &str) -> Change {
    Change { key: key(text), value: Some(value.into()), expires: None }
}

fn delete(text: &str) -> Change {
    Change { key: key(text), value: None, expires: None }
}

fn commit(changes: Vec<Change>) -> Commit {
    Commit { changes, author: "test".to_owned(), expect: Vec::new() }
}

/// The resources known to a reader of a watch.
struct Mirror {
    events: Receiver<Event>,
    revision: u64,
    values: BTreeMap<String, String>,
    /// Number of full listings received.
    resets: usize,
}

impl Mirror {
    fn of(store: &Etcd, listing: &Listing) -> Self {
        let mut mirror =
            Self { events: store.watch(listing.revision), revision: 0, values: BTreeMap::new(), resets: 0 };
        mirror.take(listing);
        mirror
    }

    fn take(&mut self, listing: &Listing) {
        self.revision = listing.revision;
        let value = |item: &Item| (item.key.to_string(), item.value.to_string());
        self.values = listing.items.iter().map(value).collect();
    }

    async fn next(&mut self) {
        match timeout(LIMIT, self.events.recv()).await.expect("an event in time").expect("an event") {
            Event::Committed { revision, changes } => {
                assert!(revision > self.revision, "{revision} is reported after {}", self.revision);
                self.revision = revision;
                for (key, item) in changes {
                    match item {
                        Some(item) => {
                            assert_eq!(item.modified, revision);
                            self.values.insert(key.to_string(), item.value.to_string());
                        }
                        None => {
                            self.values.remove(&key.to_string());
                        }
                    }
                }
            }
            Event::Reset(listing) => {
                self.resets += 1;
                self.take(&listing);
            }
        }
    }

    /// Reads until a resource has a value; `None`: until it is gone.
    async fn until(&mut self, key: &str, value: Option<&str>) {
        while self.values.get(key).map(String::as_str) != value {
            self.next().await;
        }
    }
}

/// The cluster's store, and a reader of it.
async fn open(options: EtcdOptions) -> (Etcd, Mirror) {
    let store = Etcd::new(options);
    let listing = store.list(None).await.expect("a listing");
    let mirror = Mirror::of(&store, &listing);
    (store, mirror)
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

#[test]
fn what_is_committed_is_kept_and_told() {
    let cluster = EtcdCluster::start(1);
    cluster.put("routes/", "init_dir");
    cluster.put("plugins", "[]");
    cluster.put("data_plane/server_info/1", "{}");
    runtime().block_on(async {
        let (store, mut mirror) = open(options(cluster.urls())).await;
        assert!(mirror.values.is_empty(), "{:?}", mirror.values);

        let many = vec![put("routes/1", "{\"a\":1}"), put("upstreams/1", "{}"), put("secrets/vault/1", "{}")];
        let first = store.commit(commit(many)).await.expect("committed");
        mirror.next().await;
        assert_eq!((mirror.revision, mirror.values.len()), (first, 3), "as one");
        let item = store.get(&key("routes/1")).await.expect("an answer").expect("an item");
        assert_eq!((&*item.value, item.created, item.modified), ("{\"a\":1}", first, first));

        let second = store.commit(commit(vec![put("routes/1", "{}"), delete("upstreams/1")])).await.expect("committed");
        mirror.next().await;
        assert_eq!(mirror.values.keys().collect::<Vec<_>>(), ["routes/1", "secrets/vault/1"]);
        let listing = store.list(Some(Kind::Routes)).await.expect("a listing");
        assert_eq!(listing.revision, second);
        let revisions: Vec<_> = listing.items.iter().map(|item| (item.created, item.modified)).collect();
        assert_eq!(revisions, [(first, second)]);
        assert_eq!(store.get(&key("upstreams/1")).await, Ok(None));
    });
    assert_eq!(cluster.value("routes/1"), Some(serde_json::json!({})));
}

#[test]
fn kinds_in_one_directory_are_listed_apart_and_in_order_of_creation() {
    let cluster = EtcdCluster::start(1);
    for place in ["consumers/z", "consumers/a/credentials/c", "consumers/a", "routes/9", "routes/1"] {
        cluster.put(place, "{}");
    }
    runtime().block_on(async {
        let store = Etcd::new(options(cluster.urls()));
        let cases = [
            (Some(Kind::Consumers), vec!["consumers/z", "consumers/a"]),
            (Some(Kind::Credentials), vec!["consumers/a/credentials/c"]),
            (Some(Kind::Routes), vec!["routes/9", "routes/1"]),
            (Some(Kind::Ssls), vec![]),
        ];
        for (kind, expected) in cases {
            let listing = store.list(kind).await.expect("a listing");
            let keys: Vec<_> = listing.items.iter().map(|item| item.key.to_string()).collect();
            assert_eq!(keys, expected, "{kind:?}");
        }
    });
}

#[test]
fn a_commit_happens_only_as_expected() {
    let cluster = EtcdCluster::start(1);
    runtime().block_on(async {
        let store = Etcd::new(options(cluster.urls()));
        let revision = store.commit(commit(vec![put("routes/1", "1"), put("routes/2", "2")])).await.expect("committed");
        let expect = |place: &str, modified| Expectation { key: key(place), modified };
        let cases = [
            (vec![expect("routes/1", None)], Some("routes/1")),
            (vec![expect("routes/9", Some(revision))], Some("routes/9")),
            (vec![expect("routes/2", Some(revision)), expect("routes/3", None)], None),
            // Which changed the first one.
            (vec![expect("routes/2", Some(revision)), expect("routes/1", Some(revision))], Some("routes/1")),
        ];
        for (expect, conflict) in cases {
            let changes = vec![put("routes/1", "new"), put("upstreams/9", "{}")];
            let outcome = store.commit(Commit { changes, author: String::new(), expect: expect.clone() }).await;
            match conflict {
                None => {
                    outcome.unwrap_or_else(|error| panic!("{expect:?}: {error}"));
                }
                Some(place) => assert_eq!(outcome, Err(StoreError::Conflict { key: key(place) }), "{expect:?}"),
            }
        }
        let too_many = (0..200).map(|index| put(&format!("routes/{index}"), "{}")).collect();
        let error = store.commit(commit(too_many)).await.expect_err("too many for etcd");
        assert!(matches!(&error, StoreError::Refused(words) if words.contains("200 changes")), "{error}");
    });
}

#[test]
fn a_resource_goes_away_at_its_time() {
    let cluster = EtcdCluster::start(1);
    runtime().block_on(async {
        let (store, mut mirror) = open(options(cluster.urls())).await;
        let expires = Some(SystemTime::now() + Duration::from_secs(1));
        let change = Change { expires, ..put("routes/1", "{}") };
        store.commit(commit(vec![change])).await.expect("committed");
        mirror.until("routes/1", Some("{}")).await;
        mirror.until("routes/1", None).await;
    });
}

#[test]
fn thousands_of_resources_come_in_pages_of_one_revision() {
    let cluster = EtcdCluster::start(1);
    runtime().block_on(async {
        let patient = EtcdOptions { timeout: Duration::from_secs(60), ..options(cluster.urls()) };
        let store = Etcd::new(patient);
        for group in 0..25 {
            let changes = (0..100).map(|index| put(&format!("routes/{group}-{index}"), "{}")).collect();
            store.commit(commit(changes)).await.expect("committed");
        }
        let listing = store.list(None).await.expect("a listing");
        assert_eq!(listing.items.len(), 2500);
        assert!(listing.items.is_sorted_by_key(|item| item.created));
        // 72 MB in base64, more than one answer may have.
        let large = "x".repeat(1_500_000);
        for index in 0..36 {
            store.commit(commit(vec![put(&format!("protos/{index}"), &large)])).await.expect("committed");
        }
        assert_eq!(store.list(None).await.expect("a listing").items.len(), 2536);
    });
}

#[test]
fn one_member_of_three_may_end() {
    let mut cluster = EtcdCluster::start(3);
    let runtime = runtime();
    let (store, mut mirror) = runtime.block_on(open(options(cluster.urls())));
    for index in 0..3 {
        cluster.kill(index);
        runtime.block_on(async {
            let place = format!("routes/{index}");
            let change = vec![put(&place, "{}")];
            // The others may be electing a leader, and then say that they do not know.
            let made = timeout(LIMIT, async { while store.commit(commit(change.clone())).await.is_err() {} });
            made.await.expect("two of three take a change");
            mirror.until(&place, Some("{}")).await;
        });
        cluster.start_member(index);
        cluster.await_healthy();
    }
    assert_eq!(mirror.resets, 0, "nothing had to be read again");
}

#[test]
fn changes_while_every_member_was_away_are_told_afterwards() {
    let mut cluster = EtcdCluster::start(3);
    let relay = Relay::to(cluster.port(0));
    let runtime = runtime();
    let (store, mut mirror) = runtime.block_on(open(options(vec![format!("http://{}", relay.addr)])));
    let health = store.health();
    runtime.block_on(store.commit(commit(vec![put("routes/1", "1"), put("routes/2", "2")]))).expect("committed");
    runtime.block_on(mirror.until("routes/2", Some("2")));
    relay.cut();
    cluster.put("routes/1", "changed");
    cluster.delete("routes/2");
    cluster.put("routes/3", "{}");
    cluster.kill_all();
    runtime.block_on(async {
        let error = store.commit(commit(vec![put("routes/4", "{}")])).await.expect_err("nobody answers");
        assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
        while health.reachable() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    relay.mend();
    cluster.start_all();
    runtime.block_on(async {
        mirror.until("routes/3", Some("{}")).await;
        assert_eq!(mirror.values.get("routes/1").map(String::as_str), Some("changed"));
        assert_eq!(mirror.values.get("routes/2"), None);
        while !health.reachable() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    assert_eq!(mirror.resets, 0, "nothing had to be read again");
}

#[test]
fn what_was_compacted_away_is_read_again_as_a_whole() {
    let cluster = EtcdCluster::start(1);
    let relay = Relay::to(cluster.port(0));
    let runtime = runtime();
    cluster.put("routes/gone", "{}");
    let (store, mut mirror) = runtime.block_on(open(options(vec![format!("http://{}", relay.addr)])));
    relay.cut();
    cluster.delete("routes/gone");
    cluster.put("routes/new", "{}");
    cluster.compact();
    // A watch that was set up before would tell all the same; a new one cannot.
    let health = store.health();
    runtime.block_on(async {
        while health.reachable() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    relay.mend();
    runtime.block_on(mirror.until("routes/new", Some("{}")));
    assert!(!mirror.values.contains_key("routes/gone"));
    assert_eq!(mirror.resets, 1);
}

/// The change of a resource, as `routes/1 old>new`.
fn described(change: &Difference) -> String {
    let side = |text: &Option<Arc<str>>| text.as_deref().unwrap_or("-").to_owned();
    format!("{} {}>{}", change.key, side(&change.old), side(&change.new))
}

fn commits(recorded: &[Recorded]) -> Vec<String> {
    recorded.iter().map(|commit| commit.changes.iter().map(described).collect::<Vec<_>>().join(", ")).collect()
}

#[test]
fn what_was_is_told_until_it_is_compacted() {
    let cluster = EtcdCluster::start(1);
    let store = Etcd::new(options(cluster.urls()));
    let limited = Etcd::new(EtcdOptions { history: 3, ..options(cluster.urls()) });
    let runtime = runtime();
    let commit = |changes| runtime.block_on(store.commit(commit(changes))).expect("committed");
    let history = |store: &Etcd, query| runtime.block_on(store.history(query)).expect("a history");
    let all = HistoryQuery::default;
    assert_eq!(history(&store, all()), []);
    let first = commit(vec![put("routes/1", "a"), put("upstreams/1", "u")]);
    cluster.put("routes/", "init_dir");
    cluster.ctl(&["put", "/elsewhere", "x"]);
    let second = commit(vec![put("routes/1", "b"), delete("upstreams/1")]);
    // A resource that is created and deleted appears in no later listing.
    let brief = commit(vec![put("routes/2", "brief")]);
    commit(vec![delete("routes/2")]);
    cluster.ctl(&["put", "/elsewhere", "y"]);
    let last = commit(vec![put("routes/1", "b"), put("routes/3", "c")]);
    let expected = [
        "routes/1 b>b, routes/3 ->c",
        "routes/2 brief>-",
        "routes/2 ->brief",
        "routes/1 a>b, upstreams/1 u>-",
        "routes/1 ->a, upstreams/1 ->u",
    ];
    let cases: &[(HistoryQuery, &[&str])] = &[
        (all(), &expected),
        (HistoryQuery { limit: 2, ..all() }, &expected[..2]),
        (HistoryQuery { before: Some(brief + 1), ..all() }, &expected[2..]),
        (HistoryQuery { before: Some(second), limit: 9, ..all() }, &expected[4..]),
        (HistoryQuery { before: Some(u64::MAX), limit: 1, ..all() }, &expected[..1]),
        (HistoryQuery { before: Some(0), ..all() }, &[]),
        (HistoryQuery { key: Some(key("upstreams/1")), ..all() }, &expected[3..]),
        (HistoryQuery { key: Some(key("upstreams/1")), limit: 1, ..all() }, &expected[3..4]),
        (HistoryQuery { key: Some(key("routes/9")), ..all() }, &[]),
    ];
    for (query, expected) in cases {
        assert_eq!(commits(&history(&store, query.clone())), *expected, "{query:?}");
    }
    let found = history(&store, all());
    let revisions: Vec<_> = found.iter().map(|commit| commit.revision).collect();
    assert_eq!((revisions[0], revisions[3], revisions[4]), (last, second, first));
    assert_eq!(commits(&history(&limited, all())), expected[..2], "the limit is one of etcd's revisions");

    let difference = |from, to| {
        let found = runtime.block_on(store.difference(from, to));
        found.map(|found| found.iter().map(described).collect::<Vec<_>>())
    };
    let refused = |outcome: Result<Vec<String>, StoreError>, words: &str| match outcome {
        Err(StoreError::Refused(reason)) => assert!(reason.contains(words), "{reason}"),
        outcome => panic!("{outcome:?} is not refused"),
    };
    let strings = |texts: &[&str]| Ok(texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
    assert_eq!(difference(1, first), strings(&["routes/1 ->a", "upstreams/1 ->u"]));
    assert_eq!(difference(first, last), strings(&["routes/1 a>b", "routes/3 ->c", "upstreams/1 u>-"]));
    assert_eq!(difference(last, first), strings(&["routes/1 b>a", "routes/3 c>-", "upstreams/1 ->u"]));
    assert_eq!(difference(second, brief), strings(&["routes/2 ->brief"]));
    assert_eq!(difference(last, last), strings(&[]));
    for revision in [0, last + 1] {
        refused(difference(first, revision), &format!("etcd remembers those from 1 to {last}"));
    }
    cluster.ctl(&["compact", &brief.to_string()]);
    refused(
        difference(second, last),
        &format!("revision {second} is not known: etcd remembers those from {brief} to {last}"),
    );
    assert_eq!(difference(brief, last), strings(&["routes/2 brief>-", "routes/3 ->c"]));
    assert_eq!(commits(&history(&store, all())), expected[..2]);
    assert_eq!(commits(&history(&store, HistoryQuery { before: Some(second), ..all() })), [""; 0]);
    cluster.compact();
    assert_eq!(history(&store, all()), []);
}

#[test]
fn a_long_history_is_read_from_its_end() {
    let cluster = EtcdCluster::start(1);
    let store = Arc::new(Etcd::new(options(cluster.urls())));
    runtime().block_on(async {
        store.commit(commit(vec![put("routes/first", "1")])).await.expect("committed");
        // Several at once, so that it does not take long.
        for round in 0..48 {
            let mut commits = tokio::task::JoinSet::new();
            for number in 0..25 {
                let (store, change) = (Arc::clone(&store), put("routes/1", &format!("{round} {number}")));
                commits.spawn(async move { store.commit(commit(vec![change])).await.expect("committed") });
            }
            commits.join_all().await;
        }
        let found = store.history(HistoryQuery { limit: 1000, ..HistoryQuery::default() }).await.expect("a history");
        assert_eq!((found.len(), found[0].revision), (1000, cluster.revision()));
        for pair in found.windows(2) {
            assert_eq!(pair[0].revision, pair[1].revision + 1);
            assert_eq!(pair[0].changes[0].old, pair[1].changes[0].new);
        }
        let query = HistoryQuery { key: Some(key("routes/first")), ..HistoryQuery::default() };
        assert_eq!(commits(&store.history(query).await.expect("a history")), ["routes/first ->1"]);
        // More than one answer may have: the latest that fit.
        let large = "x".repeat(1_000_000);
        for number in 0..12 {
            store.commit(commit(vec![put("protos/1", &format!("{number}{large}"))])).await.expect("committed");
        }
        let found = store.history(HistoryQuery::default()).await.expect("a history");
        let first = |text: &Option<Arc<str>>| text.as_ref().map(|text| text.replace('x', ""));
        let numbers: Vec<_> = found.iter().filter_map(|commit| first(&commit.changes[0].new)).collect();
        assert_eq!(numbers, ["11", "10", "9", "8", "7", "6", "5", "4"]);
        let earlier =
            HistoryQuery { before: found.last().map(|commit| commit.revision), limit: 1, ..HistoryQuery::default() };
        let found = store.history(earlier).await.expect("a history");
        assert_eq!(first(&found[0].changes[0].new).as_deref(), Some("3"));
    });
}

#[test]
fn a_member_that_is_frozen_is_left_for_another() {
    let cluster = EtcdCluster::start(3);
    let runtime = runtime();
    let (_store, mut mirror) = runtime.block_on(open(options(cluster.urls())));
    // Whichever member the watch is at, it is frozen once.
    for index in 0..3 {
        cluster.freeze(index);
        let place = format!("routes/{index}");
        wait_until("two of three to take a change", LIMIT, || {
            let other = cluster.url((index + 1) % 3);
            std::process::Command::new(crate::harness::program("etcdctl"))
                .env("ETCDCTL_API", "3")
                .args(["--endpoints", &other, "put", "--", &format!("/apisix/{place}"), "{}"])
                .output()
                .is_ok_and(|done| done.status.success())
                .then_some(())
        });
        runtime.block_on(mirror.until(&place, Some("{}")));
        cluster.thaw(index);
    }
    assert_eq!(mirror.resets, 0);
}

#[test]
fn a_watch_that_keeps_silent_is_noticed() {
    let cluster = EtcdCluster::start(1);
    let relay = Relay::to(cluster.port(0));
    let runtime = runtime();
    cluster.put("routes/1", "{}");
    let slow =
        EtcdOptions { watch_timeout: Duration::from_secs(3600), ..options(vec![format!("http://{}", relay.addr)]) };
    let (_store, mut mirror) = runtime.block_on(open(slow));
    cluster.put("routes/2", "{}");
    runtime.block_on(mirror.until("routes/2", Some("{}")));
    for change in ["a change", "a deletion"] {
        relay.mute_watches();
        if change == "a change" {
            cluster.put("routes/1", "new")
        } else {
            cluster.delete("routes/1")
        }
        // Two checks later it is sure; the next watch tells. Until it is set up the relay keeps silent.
        let silent = async { timeout(Duration::from_millis(1500), mirror.next()).await.is_err() };
        assert!(runtime.block_on(silent), "{change} came through a relay that keeps silent");
        relay.mend();
        let value = (change == "a change").then_some("new");
        runtime.block_on(mirror.until("routes/1", value));
    }
}

#[test]
fn changes_elsewhere_in_etcd_are_no_concern() {
    let cluster = EtcdCluster::start(1);
    let runtime = runtime();
    let brief = EtcdOptions { watch_timeout: Duration::from_secs(1), ..options(cluster.urls()) };
    let (store, mut mirror) = runtime.block_on(open(brief));
    for _ in 0..5 {
        cluster.ctl(&["put", "/elsewhere", "x"]);
    }
    let revision = cluster.revision();
    let health = store.health();
    runtime.block_on(async {
        while health.delivered() < revision {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        cluster.compact();
        // Long enough for the watch to be set up anew.
        let quiet = timeout(Duration::from_secs(3), mirror.events.recv()).await;
        assert!(quiet.is_err(), "{quiet:?}");
        cluster.put("routes/1", "{}");
        mirror.until("routes/1", Some("{}")).await;
    });
    assert_eq!(mirror.resets, 0);
}

#[test]
fn another_cluster_at_the_same_place_is_noticed() {
    let mut cluster = EtcdCluster::start(1);
    let runtime = runtime();
    for index in 0..5 {
        cluster.put(&format!("routes/{index}"), "{}");
    }
    let (_store, mut mirror) = runtime.block_on(open(options(cluster.urls())));
    assert_eq!(mirror.values.len(), 5);
    cluster.forget(0);
    cluster.put("routes/fresh", "{}");
    runtime.block_on(mirror.until("routes/fresh", Some("{}")));
    assert_eq!(mirror.values.len(), 1, "{:?}", mirror.values);
    assert!(mirror.resets > 0);
}

#[test]
fn users_have_their_rights_and_tokens_may_expire() {
    let mut cluster = EtcdCluster::start(1);
    cluster.put("routes/1", "{}");
    cluster.require_users();
    let runtime = runtime();
    let with = |name: &str, password: &str| {
        let user = Some((name.to_owned(), password.to_owned()));
        EtcdOptions { user, ..options(cluster.urls()) }
    };
    let refused = |options| runtime.block_on(async { Etcd::new(options).list(None).await.expect_err("no rights") });
    let error = refused(with("reader", "wrong")).to_string();
    assert!(error.contains("authentication failed"), "{error}");
    let error = refused(options(cluster.urls())).to_string();
    assert!(error.contains("user name is empty"), "{error}");

    let (reader, mut mirror) = runtime.block_on(open(with("reader", "secret")));
    let root = Etcd::new(with("root", "secret"));
    runtime.block_on(async {
        let error = reader.commit(commit(vec![put("routes/2", "{}")])).await.expect_err("no rights");
        assert!(error.to_string().contains("permission denied"), "{error}");
        root.commit(commit(vec![put("routes/2", "{}")])).await.expect("committed");
        mirror.until("routes/2", Some("{}")).await;
    });
    // A member that starts again knows none of its tokens.
    cluster.kill(0);
    cluster.start_all();
    runtime.block_on(async {
        // The first call may come upon a connection that has ended.
        while root.get(&key("routes/2")).await.is_err() {}
        root.commit(commit(vec![put("routes/3", "{}")])).await.expect("committed");
        mirror.until("routes/3", Some("{}")).await;
    });
    assert_eq!(mirror.resets, 0);
}

#[test]
fn members_and_clients_show_certificates() {
    let cluster = EtcdCluster::start_tls(true);
    let (authority, client) = cluster.tls();
    let authority = authority.display().to_string();
    let shown = (client.cert.clone(), client.key.clone());
    let other = EtcdCluster::start_tls(true);
    let stranger = other.tls().0.display().to_string();
    let runtime = runtime();
    let numeric = vec![cluster.url(0).replace("localhost", "127.0.0.1")];
    let name = Some("etcd.test".to_owned());
    let cases = [
        ("all is well", cluster.urls(), Some(&authority), Some(&shown), None, true),
        ("any certificate does", cluster.urls(), None, Some(&shown), None, true),
        ("the name is given", numeric.clone(), Some(&authority), Some(&shown), name, true),
        ("another name", numeric, Some(&authority), Some(&shown), None, false),
        ("another authority", cluster.urls(), Some(&stranger), Some(&shown), None, false),
        ("no certificate is shown", cluster.urls(), Some(&authority), None, None, false),
    ];
    for (case, hosts, authority, shown, server_name, good) in cases {
        let tls = weir_proxy::client_config(authority.map(String::as_str), shown).expect("TLS");
        let options = EtcdOptions { tls: Arc::new(tls), server_name, ..options(hosts) };
        let outcome = runtime.block_on(async {
            let store = Etcd::new(options);
            store.commit(commit(vec![put("routes/1", "{}")])).await?;
            let mut mirror = Mirror::of(&store, &store.list(None).await?);
            store.commit(commit(vec![put("routes/1", "new")])).await?;
            mirror.until("routes/1", Some("new")).await;
            Ok::<_, StoreError>(())
        });
        assert_eq!(outcome.is_ok(), good, "{case}: {outcome:?}");
    }
}

/// A listing that lacks keys would be taken for their deletion.
#[test]
fn a_partial_listing_is_an_error() {
    let partial = Origin::answering(|_| {
        let key = "L2FwaXNpeC9yb3V0ZXMvMQ==";
        let pair = json!({ "key": key, "value": "e30=", "create_revision": "2", "mod_revision": "2" });
        let header = json!({ "cluster_id": "1", "revision": "5" });
        Answer::ok(&json!({ "header": header, "kvs": [pair], "count": "3" }).to_string())
    });
    let outcome = runtime().block_on(async {
        Etcd::new(options(vec![format!("http://{}", partial.node())]))
            .list(None)
            .await
            .map(|listing| listing.items.len())
    });
    let error = outcome.expect_err("two keys are missing").to_string();
    assert!(error.contains("1 of 3 keys were listed"), "{error}");
}
