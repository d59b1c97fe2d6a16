//! The embedded store: commits, events, history, expiry and restoring.
#![allow(clippy::disallowed_methods, reason = "tests have no worker clock")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tempfile::TempDir;
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;
use weir_store::{
    Change, Commit, Database, DatabaseError, Embedded, Event, Expectation, Folder, History, HistoryQuery, Key, Kind,
    Listing, NoSecrets, OpenError, Options, Recorded, Seal, Store, StoreError,
};

/// Deadline for an expected event.
const LIMIT: Duration = Duration::from_secs(20);

fn seal(digit: &str) -> Arc<Seal> {
    Arc::new(Seal::from_hex(&digit.repeat(64), "test", Arc::new(NoSecrets)).unwrap())
}

const HISTORY: History = History { changes: 1000, bytes: 1 << 30 };

fn options(path: &Path) -> Options {
    Options { folder: Folder::create(path).unwrap(), seal: seal("a"), history: HISTORY, succeeds: false }
}

fn open(folder: &TempDir) -> (Embedded, Listing) {
    Embedded::open(options(folder.path())).unwrap()
}

fn key(text: &str) -> Key {
    text.parse().unwrap()
}

fn put(at: &str, value: &str) -> Change {
    Change { key: key(at), value: Some(value.into()), expires: None }
}

fn gone(at: &str) -> Change {
    Change { key: key(at), value: None, expires: None }
}

fn commit(changes: Vec<Change>) -> Commit {
    Commit { changes, author: "test".to_owned(), expect: Vec::new() }
}

/// Keys and values, as `routes/1={}`.
fn entries(listing: &Listing) -> Vec<String> {
    listing.items.iter().map(|item| format!("{}={}", item.key, item.value)).collect()
}

fn texts(list: &[&str]) -> Vec<String> {
    list.iter().map(|text| (*text).to_owned()).collect()
}

async fn next(events: &mut Receiver<Event>) -> Event {
    timeout(LIMIT, events.recv()).await.expect("an event in time").expect("an event")
}

/// Several commits with one write to the disk appear as separate commits to everybody else, and none is made if one
/// fails.
#[tokio::test]
async fn commits_that_are_made_together_have_their_own_revisions() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(open(&folder).0);
    let mut events = store.watch(0);
    let all = |commits: Vec<Commit>| {
        let store = Arc::clone(&store);
        let done = tokio::task::spawn_blocking(move || store.commit_here(&commits).expect("this store can"));
        async { done.await.unwrap() }
    };
    let expecting = |modified: u64, changes| Commit {
        expect: vec![Expectation { key: key("routes/a"), modified: Some(modified) }],
        ..commit(changes)
    };
    let done = all(vec![
        commit(vec![put("routes/a", "1")]),
        commit(vec![gone("routes/none")]),
        expecting(1, vec![put("routes/a", "2"), put("routes/b", "3")]),
    ]);
    assert_eq!(done.await, Ok(vec![1, 1, 2]));
    let failed = all(vec![commit(vec![put("routes/c", "4")]), expecting(1, vec![put("routes/a", "5")])]);
    assert_eq!(failed.await, Err(StoreError::Conflict { key: key("routes/a") }));
    let listing = store.list(None).await.unwrap();
    assert_eq!((entries(&listing), listing.revision), (texts(&["routes/a=2", "routes/b=3"]), 2));
    for (revision, keys) in [(1, vec!["routes/a"]), (2, vec!["routes/a", "routes/b"])] {
        let Event::Committed { revision: committed_at, changes } = next(&mut events).await else { panic!("a commit") };
        let changed: Vec<String> = changes.iter().map(|(key, _)| key.to_string()).collect();
        assert_eq!((committed_at, changed), (revision, texts(&keys)));
    }
    let history = store.history(HistoryQuery::default()).await.unwrap();
    assert_eq!(history.iter().map(|recorded| recorded.revision).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(all(Vec::new()).await, Ok(Vec::new()));
}

#[tokio::test]
async fn what_is_committed_is_there_in_the_order_of_creation() {
    let folder = tempfile::tempdir().unwrap();
    let (store, empty) = open(&folder);
    assert_eq!(empty, Listing::default());
    let first = vec![put("routes/b", r#"{"b":1}"#), put("consumers/c", "{}"), put("consumers/c/credentials/x", "{}")];
    assert_eq!(store.commit(commit(first)).await, Ok(1));
    assert_eq!(store.commit(commit(vec![put("routes/a", "{}")])).await, Ok(2));
    assert_eq!(store.commit(commit(vec![put("routes/b", r#"{"b":2}"#)])).await, Ok(3));
    assert_eq!(store.commit(commit(vec![gone("routes/none")])).await, Ok(3), "nothing has changed");
    let all = ["routes/b={\"b\":2}", "consumers/c={}", "consumers/c/credentials/x={}", "routes/a={}"];
    let cases: &[(Option<Kind>, &[&str])] = &[
        (None, &all),
        (Some(Kind::Routes), &["routes/b={\"b\":2}", "routes/a={}"]),
        (Some(Kind::Consumers), &["consumers/c={}"]),
        (Some(Kind::Credentials), &["consumers/c/credentials/x={}"]),
        (Some(Kind::Services), &[]),
    ];
    for (kind, expected) in cases {
        let listing = store.list(*kind).await.unwrap();
        assert_eq!((entries(&listing), listing.revision), (texts(expected), 3), "{kind:?}");
    }
    let item = store.get(&key("routes/b")).await.unwrap().unwrap();
    assert_eq!((item.created, item.modified), (1, 3));
    assert_eq!(store.get(&key("routes/c")).await, Ok(None));

    store.close("test").await;
    assert!(matches!(store.commit(commit(vec![gone("routes/a")])).await, Err(StoreError::Unavailable(_))));
    let (store, listing) = open(&folder);
    assert_eq!((entries(&listing), listing.revision), (texts(&all), 3));
    assert_eq!(store.revision().await, Ok(3));
}

#[tokio::test]
async fn a_commit_happens_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = open(&folder);
    store.commit(commit(vec![put("routes/1", "{}")])).await.unwrap();
    let cases = [("routes/1", None), ("routes/1", Some(7)), ("routes/2", Some(1))];
    for (at, modified) in cases {
        let mut wrong = commit(vec![put("routes/2", "{}"), gone("routes/1")]);
        wrong.expect.push(Expectation { key: key(at), modified });
        assert_eq!(store.commit(wrong).await, Err(StoreError::Conflict { key: key(at) }), "{at} {modified:?}");
    }
    assert_eq!(entries(&store.list(None).await.unwrap()), ["routes/1={}"]);
    let mut right = commit(vec![put("routes/2", "{}"), gone("routes/1")]);
    right.expect = vec![
        Expectation { key: key("routes/1"), modified: Some(1) },
        Expectation { key: key("routes/2"), modified: None },
    ];
    assert_eq!(store.commit(right).await, Ok(2));
    assert_eq!(entries(&store.list(None).await.unwrap()), ["routes/2={}"]);
}

#[tokio::test]
async fn the_history_lists_earlier_states() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = open(&folder);
    store.commit(commit(vec![put("routes/1", "1"), put("routes/2", "1")])).await.unwrap();
    store.commit(commit(vec![put("routes/1", "2")])).await.unwrap();
    store
        .commit(Commit { author: "jane".to_owned(), ..commit(vec![gone("routes/2"), put("routes/3", "3")]) })
        .await
        .unwrap();
    store.commit(commit(vec![put("routes/1", "1")])).await.unwrap();

    let revisions = |query: HistoryQuery| {
        let store = &store;
        async move { store.history(query).await.unwrap().iter().map(|found| found.revision).collect::<Vec<_>>() }
    };
    let all = HistoryQuery::default;
    assert_eq!(revisions(all()).await, [4, 3, 2, 1]);
    assert_eq!(revisions(HistoryQuery { limit: 2, ..all() }).await, [4, 3]);
    assert_eq!(revisions(HistoryQuery { before: Some(3), ..all() }).await, [2, 1]);
    assert_eq!(revisions(HistoryQuery { key: Some(key("routes/2")), ..all() }).await, [3, 1]);
    let third = store.history(all()).await.unwrap().remove(1);
    assert_eq!(third.author.as_deref(), Some("jane"));
    assert!(third.time.unwrap().elapsed().unwrap() < LIMIT);
    assert_eq!(third.changes.len(), 2);

    let cases: &[(u64, u64, &[&str])] = &[
        (0, 1, &["routes/1: - 1", "routes/2: - 1"]),
        (1, 4, &["routes/2: 1 -", "routes/3: - 3"]),
        (4, 1, &["routes/2: - 1", "routes/3: 3 -"]),
        (1, 2, &["routes/1: 1 2"]),
        (2, 2, &[]),
        (0, 4, &["routes/1: - 1", "routes/3: - 3"]),
    ];
    for (from, to, expected) in cases {
        let found = store.difference(*from, *to).await.unwrap();
        let text = |value: &Option<Arc<str>>| value.as_deref().unwrap_or("-").to_owned();
        let found: Vec<String> =
            found.iter().map(|one| format!("{}: {} {}", one.key, text(&one.old), text(&one.new))).collect();
        assert_eq!(found, texts(expected), "{from} → {to}");
    }
    assert!(matches!(store.difference(0, 5).await, Err(StoreError::Refused(reason)) if reason.contains("from 0 to 4")));
}

#[tokio::test]
async fn the_history_is_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) =
        Embedded::open(Options { history: History { changes: 5, ..HISTORY }, ..options(folder.path()) }).unwrap();
    for number in 0..20 {
        store
            .commit(commit(vec![put("routes/1", &number.to_string()), put("routes/2", &number.to_string())]))
            .await
            .unwrap();
    }
    // Commits are deleted as a whole: two commits with two changes each remain.
    let kept = store.history(HistoryQuery::default()).await.unwrap();
    assert_eq!(kept.iter().map(|found| found.revision).collect::<Vec<_>>(), [20, 19]);
    assert_eq!(store.difference(18, 20).await.unwrap().len(), 2);
    assert!(matches!(store.difference(17, 20).await, Err(StoreError::Refused(_))));
    assert_eq!(entries(&store.list(None).await.unwrap()), ["routes/1=19", "routes/2=19"]);
    // A watch from a deleted revision receives everything.
    let mut events = store.watch(3);
    assert!(matches!(next(&mut events).await, Event::Reset(listing) if listing.revision == 20));
}

#[tokio::test]
async fn the_history_is_bounded_in_bytes() {
    let folder = tempfile::tempdir().unwrap();
    // The old and new texts of four changes fit, those of five do not.
    let history = History { changes: 1000, bytes: 90_000 };
    let value = |number: u32| format!("\"{number}{}\"", "x".repeat(10_000));
    let revisions = |history: Vec<Recorded>| history.iter().map(|found| found.revision).collect::<Vec<_>>();
    let (mut number, mut database) = (0, 0);
    for start in 0..3 {
        let (store, _) = Embedded::open(Options { history, ..options(folder.path()) }).unwrap();
        for _ in 0..40 {
            number += 1;
            store.commit(commit(vec![put("routes/1", &value(number))])).await.unwrap();
        }
        // The bytes written by an earlier process count as well.
        let last = u64::from(number);
        let kept = revisions(store.history(HistoryQuery::default()).await.unwrap());
        assert_eq!(kept, [last, last - 1, last - 2, last - 3], "start {start}");
        store.close("test").await;
        let size = std::fs::metadata(folder.path().join("weir.db")).unwrap().len();
        database = if start == 0 { size } else { database };
        assert!(size <= database + 100_000, "{size} after {database}");
    }
    // A commit that exceeds the bound by itself is deleted from the history at once; the resource exists.
    let (store, _) =
        Embedded::open(Options { history: History { bytes: 1000, ..history }, ..options(folder.path()) }).unwrap();
    store.commit(commit(vec![put("routes/1", &value(0))])).await.unwrap();
    assert!(store.history(HistoryQuery::default()).await.unwrap().is_empty());
    assert_eq!(entries(&store.list(None).await.unwrap()), [format!("routes/1={}", value(0))]);
}

#[tokio::test]
async fn watchers_receive_changes_from_a_revision_on() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = open(&folder);
    for number in 1..=3 {
        store.commit(commit(vec![put("routes/1", &number.to_string())])).await.unwrap();
    }
    let mut events = store.watch(1);
    store.commit(commit(vec![gone("routes/1"), put("routes/2", "{}")])).await.unwrap();
    for (revision, value) in [(2, "2"), (3, "3")] {
        let Event::Committed { revision: found, changes } = next(&mut events).await else { panic!("a commit") };
        let item = changes[0].1.as_ref().unwrap();
        assert_eq!((found, &*item.value, item.created, item.modified), (revision, value, 1, revision));
    }
    let Event::Committed { revision: 4, changes } = next(&mut events).await else { panic!("the fourth commit") };
    assert_eq!(changes[0], (key("routes/1"), None));
    assert_eq!(changes[1].1.as_ref().map(|item| item.created), Some(4));
    store.close("test").await;
    assert_eq!(timeout(LIMIT, events.recv()).await.unwrap(), None, "the watch ends with the store");
}

#[tokio::test]
async fn what_expires_goes_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let expiring = |at: &str, expires| Change { expires, ..put(at, "{}") };
    let (store, _) = open(&folder);
    let mut events = store.watch(0);
    // Both changes are durable long before the expiry.
    let soon = SystemTime::now() + Duration::from_secs(3);
    let changes = vec![expiring("routes/1", Some(soon)), expiring("routes/2", None), expiring("routes/3", Some(soon))];
    store.commit(commit(changes)).await.unwrap();
    // A change without expiry keeps the resource for good.
    store.commit(commit(vec![expiring("routes/3", None)])).await.unwrap();
    let (_, _) = (next(&mut events).await, next(&mut events).await);
    assert_eq!(next(&mut events).await, Event::Committed { revision: 3, changes: vec![(key("routes/1"), None)] });
    assert!(SystemTime::now() >= soon);
    assert_eq!(entries(&store.list(None).await.unwrap()), ["routes/2={}", "routes/3={}"]);
    assert_eq!(store.history(HistoryQuery::default()).await.unwrap()[0].author.as_deref(), Some("ttl"));
    // A resource that expired while the store was closed is deleted after opening.
    store.commit(commit(vec![expiring("routes/2", Some(SystemTime::now()))])).await.unwrap();
    store.close("test").await;
    let (store, listing) = open(&folder);
    let mut events = store.watch(listing.revision);
    if entries(&listing).len() == 2 {
        assert!(matches!(next(&mut events).await, Event::Committed { changes, .. } if changes[0].1.is_none()));
    }
    assert_eq!(entries(&store.list(None).await.unwrap()), ["routes/3={}"]);
}

#[tokio::test]
async fn one_process_writes_and_the_next_one_waits_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let (first, _) = open(&folder);
    let second = Embedded::open(options(folder.path()));
    assert!(matches!(second, Err(OpenError::InUse(who)) if who.contains(&std::process::id().to_string())));

    let (second, listing) = Embedded::open(Options { succeeds: true, ..options(folder.path()) }).unwrap();
    assert_eq!(listing.revision, 0);
    let mut events = second.watch(0);
    first.commit(commit(vec![put("routes/1", "{}")])).await.unwrap();
    let waits = second.commit(commit(vec![put("routes/2", "{}")]));
    let (kept, ()) = tokio::join!(waits, async {
        tokio::task::yield_now().await;
        first.close("another one has taken over").await;
    });
    assert_eq!(kept, Ok(2), "after what the first one did last");
    for revision in [1, 2] {
        assert!(matches!(next(&mut events).await, Event::Committed { revision: found, .. } if found == revision));
    }
    let refused = first.commit(commit(vec![gone("routes/1")])).await;
    assert!(matches!(refused, Err(StoreError::Unavailable(reason)) if reason.contains("taken over")));
}

#[tokio::test]
async fn the_lock_outlives_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let (first, _) = open(&folder);
    let lock = folder.path().join("lock");
    for removed in [true, false] {
        // First without the lock file, then with a new one that is not locked.
        if removed {
            std::fs::remove_file(&lock).unwrap();
        }
        let second = Embedded::open(options(folder.path()));
        assert!(matches!(second, Err(OpenError::InUse(who)) if who.contains("another process")), "{removed}");
    }
    first.commit(commit(vec![put("routes/1", "{}")])).await.unwrap();
    // A process that takes over still waits for the previous one.
    let (second, _) = Embedded::open(Options { succeeds: true, ..options(folder.path()) }).unwrap();
    let waits = second.commit(commit(vec![put("routes/2", "{}")]));
    let (kept, refused) = tokio::join!(waits, async {
        tokio::task::yield_now().await;
        let third = Embedded::open(options(folder.path()));
        first.close("another one has taken over").await;
        third.map(drop)
    });
    assert_eq!(kept, Ok(2));
    assert!(matches!(refused, Err(OpenError::InUse(_))), "{refused:?}");
}

#[tokio::test]
async fn secrets_need_their_key() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = open(&folder);
    store.commit(commit(vec![put("routes/1", "{}")])).await.unwrap();
    store.close("test").await;
    let other = Embedded::open(Options { seal: seal("b"), ..options(folder.path()) });
    assert!(matches!(other, Err(OpenError::Unfit(reason)) if reason.contains("put the right key")));
}

#[tokio::test]
async fn a_file_that_is_no_database_is_distinguished_from_a_newer_version() {
    let text = "this is not a database, however long it may be".repeat(100);
    let newer = |path: &Path| {
        let connection = rusqlite::Connection::open(path).unwrap();
        connection.execute_batch("PRAGMA user_version = 2").unwrap();
    };
    let other = |path: &Path| {
        let connection = rusqlite::Connection::open(path).unwrap();
        connection.execute_batch("PRAGMA application_id = 7").unwrap();
    };
    let no_table = |path: &Path| {
        let connection = rusqlite::Connection::open(path).unwrap();
        connection.execute_batch("DROP TABLE items").unwrap();
    };
    /// Name of a damage, the function that does it, and whether a copy may replace the database then.
    type Harm<'a> = (&'a str, &'a dyn Fn(&Path), bool);
    let cases: [Harm<'_>; 4] = [
        ("text", &|path| std::fs::write(path, &text).unwrap(), true),
        ("newer", &newer, false),
        ("of another program", &other, true),
        ("without a table", &no_table, true),
    ];
    for (name, harm, broken) in cases {
        let folder = tempfile::tempdir().unwrap();
        let (store, _) = open(&folder);
        store.close("test").await;
        harm(&folder.path().join("weir.db"));
        match Embedded::open(options(folder.path())) {
            Err(OpenError::Broken(_)) if broken => {}
            Err(OpenError::Unfit(reason)) if !broken => assert!(reason.contains("newer version"), "{reason}"),
            result => panic!("{name}: {result:?}"),
        }
    }
}

#[tokio::test]
async fn a_backup_is_made_while_others_write() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = open(&folder);
    store.commit(commit((0..2000).map(|n| put(&format!("routes/{n}"), "{}")).collect())).await.unwrap();
    let (from, to) = (folder.path().join("weir.db"), folder.path().join("backup.db"));
    let backup = std::thread::spawn({
        let to = to.clone();
        move || Database::read_only(&from, seal("a")).unwrap().backup(&to)
    });
    for number in 0..20 {
        store.commit(commit(vec![put("routes/0", &number.to_string())])).await.unwrap();
    }
    let revision = backup.join().unwrap().unwrap();
    let copy = Database::read_only(&to, seal("a")).unwrap();
    let listing = copy.list(None).unwrap();
    assert_eq!((listing.revision, listing.items.len()), (revision, 2000));
    assert_eq!(copy.check().unwrap(), Vec::<String>::new());
    assert!(matches!(Database::read_only(&to, seal("b")), Err(DatabaseError::Unfit(_))));
}

#[tokio::test]
async fn a_file_that_is_gone_is_not_written_to() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = open(&folder);
    store.commit(commit(vec![put("routes/1", "{}")])).await.unwrap();
    std::fs::remove_file(folder.path().join("weir.db")).unwrap();
    let refused = store.commit(commit(vec![put("routes/2", "{}")])).await;
    assert!(matches!(refused, Err(StoreError::Unavailable(reason)) if reason.contains("removed or replaced")));
    assert!(store.health().fault.is_some());
    assert_eq!(entries(&store.list(None).await.unwrap()), ["routes/1={}"], "what is open can still be read");
}
