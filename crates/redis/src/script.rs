//! Scripts that run in a server, known there by the digest of their text.

use std::sync::LazyLock;

use aws_lc_rs::digest;
use redis::{Arg, Cmd};

/// Gives the value of the key.
pub static GET: LazyLock<Script> = LazyLock::new(|| Script::new("return redis.call('GET', KEYS[1])"));
/// Removes the key; gives 1 where there was one.
pub static REMOVE: LazyLock<Script> = LazyLock::new(|| Script::new("return redis.call('DEL', KEYS[1])"));

/// A script.
#[derive(Debug)]
pub struct Script {
    text: &'static str,
    /// SHA-1 in hexadecimal digits.
    digest: String,
}

impl Script {
    /// A script in Lua, which is given one key.
    #[must_use]
    pub fn new(text: &'static str) -> Self {
        let digest = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes());
        Self { text, digest: digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect() }
    }

    /// Appends the command that runs the script: by its digest, or with its `whole` text for a server that does not
    /// know it yet.
    pub(crate) fn write(&self, whole: bool, key: &[u8], arguments: &[&[u8]], out: &mut Vec<u8>) {
        let mut command = Cmd::with_capacity(4 + arguments.len(), 128 + key.len());
        match whole {
            true => command.arg("EVAL").arg(self.text),
            false => command.arg("EVALSHA").arg(self.digest.as_str()),
        };
        command.arg("1").arg(key);
        for argument in arguments {
            command.arg(*argument);
        }
        command.write_packed_command(out);
    }
}

/// Appends a command of simple words.
pub(crate) fn write_words(words: &[&str], out: &mut Vec<u8>) {
    let mut command = Cmd::new();
    for word in words {
        command.arg(*word);
    }
    debug_assert!(command.args_iter().all(|arg| matches!(arg, Arg::Simple(_))));
    command.write_packed_command(out);
}

#[cfg(test)]
mod tests {
    use super::Script;

    #[test]
    fn a_script_is_run_by_its_digest_or_its_text() {
        let script = Script::new("return 1");
        let mut out = Vec::new();
        script.write(false, b"k\r\n", &[b"5"], &mut out);
        let text = String::from_utf8_lossy(&out);
        // As `redis-cli script load` tells it.
        let digest = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";
        assert_eq!(text, format!("*5\r\n$7\r\nEVALSHA\r\n$40\r\n{digest}\r\n$1\r\n1\r\n$3\r\nk\r\n\r\n$1\r\n5\r\n"));
        out.clear();
        script.write(true, b"k", &[], &mut out);
        assert_eq!(out, b"*4\r\n$4\r\nEVAL\r\n$8\r\nreturn 1\r\n$1\r\n1\r\n$1\r\nk\r\n");
    }
}
