//! Files that the gateway makes are their owner's alone, whatever the umask.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use serde_json::json;

use crate::harness::{EtcdCluster, Gateway, LIMIT, Start, binary, wait_until};

/// Takes nothing away from the mode that a program asks for.
const NO_UMASK: [&str; 3] = ["sh", "-c", r#"umask 0 && exec "$0" "$@""#];

fn mode(path: &Path) -> u32 {
    let found = fs::metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    found.permissions().mode() & 0o777
}

/// The files in a folder that others may do anything with.
fn open_to_others(folder: &Path) -> Vec<String> {
    let files = fs::read_dir(folder).expect("a folder").flatten();
    let open = files.filter(|file| mode(&file.path()) & 0o077 != 0);
    open.map(|file| format!("{:04o} {}", mode(&file.path()), file.path().display())).collect()
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("change the mode");
}

fn route() -> String {
    json!({ "uri": "/1", "plugins": { "mocking": { "response_example": "one" } } }).to_string()
}

fn await_file(path: &Path) {
    wait_until(&format!("{}", path.display()), LIMIT, || path.exists().then_some(()));
}

fn stop(mut gateway: Gateway) {
    gateway.signal(Signal::TERM);
    assert!(gateway.wait().success());
}

#[test]
fn databases_copies_and_logs_are_their_owners_alone() {
    let top = tempfile::tempdir().expect("a folder");
    let data = top.path().join("above/data");
    let settings = "{access_log: {path: FOLDER/access.log}, error_log: {path: FOLDER/error.log}}";
    let start = || Start::stored().settings(settings).data_dir(&data).wrapper(&NO_UMASK).start();
    let gateway = start();
    gateway.must("PUT", "routes/1", &route());
    assert_eq!(gateway.get("/1").status, 200);
    await_file(&data.join("last-good.json"));
    for name in ["weir.db", "weir.db-wal", "weir.db-shm", "key", "lock", "last-good.json"] {
        assert_eq!(mode(&data.join(name)), 0o600, "{name}");
    }
    assert_eq!((mode(&data), open_to_others(&data)), (0o700, vec![]));
    // One that is opened again is made anew as well.
    for log in ["access.log", "error.log"] {
        assert_eq!(mode(&gateway.file(log)), 0o600, "{log}");
        fs::rename(gateway.file(log), gateway.file("moved")).expect("move the log away");
    }
    gateway.signal(Signal::USR1);
    for log in ["access.log", "error.log"] {
        await_file(&gateway.file(log));
        assert_eq!(mode(&gateway.file(log)), 0o600, "{log} after SIGUSR1");
    }
    stop(gateway);

    let store = |arguments: &[&str]| {
        let mut command = Command::new(NO_UMASK[0]);
        command.args(&NO_UMASK[1..]).arg(binary()).arg("store").args(arguments).arg("--data-dir").arg(&data);
        let output = command.output().expect("run weir");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let backup = top.path().join("backup.db");
    store(&["backup", &backup.display().to_string()]);
    assert_eq!(mode(&backup), 0o600);
    for restore in [&["restore"][..], &["restore", &backup.display().to_string()]] {
        store(restore);
        assert_eq!(open_to_others(&data), [] as [String; 0], "{restore:?}");
        let gateway = start();
        gateway.must("PUT", "routes/2", &route());
        assert_eq!(open_to_others(&data), [] as [String; 0], "after {restore:?}");
        stop(gateway);
    }
    // As earlier versions restored it.
    set_mode(&data.join("weir.db"), 0o644);
    let gateway = start();
    gateway.must("PUT", "routes/3", &route());
    assert_eq!(open_to_others(&data), [] as [String; 0]);
    assert_eq!(gateway.get("/1").status, 200);
}

#[test]
fn the_copy_of_etcd_is_its_owners_alone() {
    let cluster = EtcdCluster::start(1);
    cluster.put("routes/1", route());
    let top = tempfile::tempdir().expect("a folder");
    let data = top.path().join("data");
    let etcd = json!({ "deployment": { "config_provider": "etcd", "etcd": { "host": cluster.urls() } } });
    let gateway = Start::stored().settings(etcd).data_dir(&data).wrapper(&NO_UMASK).start();
    await_file(&data.join("etcd+apisix.json"));
    assert_eq!((mode(&data), open_to_others(&data)), (0o700, vec![]));
    drop(gateway);
}

#[test]
fn logs_have_the_mode_that_is_asked_for_and_keep_their_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let (access, error) = (folder.path().join("access.log"), folder.path().join("error.log"));
    fs::write(&access, "").expect("write a file");
    set_mode(&access, 0o644);
    let settings = json!({
        "access_log": { "path": access, "mode": "0640" },
        "error_log": { "path": error, "mode": "0664" },
    });
    let start = Start::new("routes: []").settings(settings).wrapper(&NO_UMASK);
    let gateway = start.start();
    assert_eq!((mode(&access), mode(&error)), (0o644, 0o664));
    fs::remove_file(&access).expect("remove the log");
    gateway.signal(Signal::USR1);
    await_file(&access);
    assert_eq!(mode(&access), 0o640);
}
