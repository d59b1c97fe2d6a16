//! Other programs: started, watched through `/proc`, and always ended.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::{LIMIT, wait_until};

/// A child process that does not outlive this value.
pub(crate) struct Process {
    child: Child,
}

impl Process {
    pub(crate) fn spawn(command: &mut Command) -> Self {
        let child = command.spawn().unwrap_or_else(|error| panic!("start {command:?}: {error}"));
        Self { child }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.id().cast_signed()).expect("a process id");
        kill_process(pid, signal).expect("send a signal");
    }

    /// The exit status of the process, if it has ended.
    pub(crate) fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("wait for a child")
    }

    /// Waits for the end of the process.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        wait_until("the process to end", LIMIT, || self.exited())
    }

    /// Resident memory of the process without pages of files, in bytes: code that runs for the first time does not count.
    pub(crate) fn resident(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", self.id())).expect("read smaps_rollup");
        let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:")).expect("an Anonymous line");
        let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().expect("a number of kB");
        kib * 1024
    }

    /// User and system time used so far.
    pub(crate) fn cpu(&self) -> Duration {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.id())).expect("read stat");
        // The second field is the name in parentheses; utime and stime are the 14th and 15th of all.
        let (_, rest) = text.rsplit_once(')').expect("a name in parentheses");
        let ticks: u64 = rest.split_whitespace().skip(11).take(2).map(|t| t.parse::<u64>().expect("ticks")).sum();
        Duration::from_millis(ticks * 1000 / rustix::param::clock_ticks_per_second())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The state of each thread of a process, its CPU time in ticks, and its current system call.
pub(crate) fn threads(id: u32) -> String {
    let threads = std::fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten();
    let read = |file: PathBuf| std::fs::read_to_string(file).unwrap_or_default();
    let lines = threads.map(|thread| {
        let (stat, call) = (read(thread.path().join("stat")), read(thread.path().join("syscall")));
        let fields: Vec<&str> = stat.split_whitespace().collect();
        let ticks = fields.get(13..15).unwrap_or_default().join("+");
        format!("  {} {ticks}, call {call}", fields.get(..3).unwrap_or_default().join(" "))
    });
    lines.collect()
}

/// Runs `work` and measures its duration.
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let result = work();
    (result, start.elapsed())
}

/// A program from Debian's packages, which may be outside of an ordinary user's PATH.
pub(crate) fn program(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|folder: PathBuf| folder.join(name))
        .find(|file| file.is_file())
        .unwrap_or_else(|| panic!("{name} is missing: run tools/install-test-deps"))
}

/// Writes an executable file with this text. Another process writes the file, because a child started by another test at
/// this moment would inherit a handle that is open for writing, and such a file cannot be run.
pub(crate) fn put_program(file: &Path, text: &str) {
    // The target of a link must not be overwritten.
    let _ = std::fs::remove_file(file);
    let mut install = Command::new(program("install"));
    let mut child = install.args(["-m", "755", "/dev/stdin"]).arg(file).stdin(Stdio::piped()).spawn().expect("install");
    child.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("write the program");
    assert!(child.wait().expect("wait for install").success());
}

/// The gateway's program: the one that cargo built with the tests, or the build named by `BLACKBOX_GATEWAY`, so that the
/// tests themselves need not be optimised.
pub(crate) fn binary() -> PathBuf {
    std::env::var_os("BLACKBOX_GATEWAY").map_or_else(|| env!("CARGO_BIN_EXE_weir").into(), PathBuf::from)
}

/// A helper program of this workspace, built beside the gateway.
pub(crate) fn companion(name: &str) -> PathBuf {
    let file = binary().with_file_name(name);
    assert!(file.is_file(), "{} is missing: build weir-bench as the gateway", file.display());
    file
}

/// A program in Go, or what is built with it, which `tools/install-test-deps` puts there where Go is; `None` without Go, for
/// tests that then say so and do nothing.
pub(crate) fn made_with_go(name: &str) -> Option<PathBuf> {
    let file = repository().join("target/test-tools").join(name);
    if !file.exists() {
        let has_go = Command::new("go").arg("version").output().is_ok();
        assert!(!has_go, "Go is here, but {name} is not: run tools/install-test-deps");
        eprintln!("no Go, no {name}: its tests are skipped");
        return None;
    }
    Some(file)
}

/// The root of the repository.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
