//! Servers of the firewall: a question and its answer on a connection that is kept.

use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use weir_net::{Network, Stream};
use weir_runtime::{now_us, timeout};

use super::conf::{NodeConf, Settings};
use super::message::{Answer, PART_HEAD, Verdict};

/// Reasons for having no verdict.
#[derive(Debug)]
pub(super) enum Fault {
    /// No connection, so that another server can be asked.
    Away(String),
    TimedOut,
    Failed(String),
}

/// Connections of a worker that nobody uses, each with its server and the time since which.
#[derive(Debug, Default)]
pub(super) struct Idle(RefCell<Vec<(NodeConf, Stream, u64)>>);

impl Idle {
    fn take(&self, node: &NodeConf, kept: Duration) -> Option<Stream> {
        let mut idle = self.0.borrow_mut();
        let since = now_us().saturating_sub(kept.as_micros() as u64);
        idle.retain(|(_, _, used)| *used >= since);
        let at = idle.iter().rposition(|(known, ..)| known == node)?;
        Some(idle.swap_remove(at).1)
    }

    fn put(&self, node: &NodeConf, stream: Stream, most: usize) {
        let mut idle = self.0.borrow_mut();
        if idle.len() < most {
            idle.push((node.clone(), stream, now_us()));
        }
    }
}

/// Asks a server.
pub(super) async fn ask(
    node: &NodeConf,
    question: &[u8],
    settings: &Settings,
    idle: &Idle,
    network: &Arc<Network>,
) -> Result<Verdict, Fault> {
    // The server may have closed a connection that was kept: then another one is asked on, and at last a fresh one.
    while let Some(mut stream) = idle.take(node, settings.kept) {
        match exchange(&mut stream, question, settings).await {
            Ok(answer) => return finish(node, stream, &answer, settings, idle),
            Err(Fault::Away(_)) => {}
            Err(fault) => return Err(fault),
        }
    }
    let host = node.host.trim_start_matches('[').trim_end_matches(']');
    let connecting = Stream::connect(host, node.port, None, "", network.names());
    let away = |reason: String| Fault::Away(format!("failed to connect to {}:{}: {reason}", node.host, node.port));
    let mut stream = match timeout(settings.connect, connecting).await {
        Some(connected) => connected.map_err(|error| away(error.to_string()))?,
        None => return Err(away("timeout".to_owned())),
    };
    let answer = exchange(&mut stream, question, settings).await?;
    finish(node, stream, &answer, settings, idle)
}

fn finish(
    node: &NodeConf,
    stream: Stream,
    answer: &Answer,
    settings: &Settings,
    idle: &Idle,
) -> Result<Verdict, Fault> {
    let verdict = answer.verdict().map_err(|reason| Fault::Failed(reason.to_owned()))?;
    idle.put(node, stream, settings.idle);
    Ok(verdict)
}

async fn exchange(stream: &mut Stream, question: &[u8], settings: &Settings) -> Result<Answer, Fault> {
    let sending = async {
        stream.write_all(question).await?;
        stream.flush().await
    };
    let away = |error: io::Error| Fault::Away(error.to_string());
    timeout(settings.send, sending).await.ok_or(Fault::TimedOut)?.map_err(away)?;
    timeout(settings.read, receive(stream)).await.ok_or(Fault::TimedOut)?
}

async fn receive(stream: &mut Stream) -> Result<Answer, Fault> {
    let mut answer = Answer::default();
    let mut has_begun = false;
    loop {
        let mut head = [0; PART_HEAD];
        let read = stream.read_exact(&mut head).await;
        read.map_err(|error| match has_begun {
            false => Fault::Away(error.to_string()),
            true => Fault::Failed(error.to_string()),
        })?;
        has_begun = true;
        let head = answer.head(head).map_err(|reason| Fault::Failed(reason.to_owned()))?;
        let mut content = vec![0; head.length];
        stream.read_exact(&mut content).await.map_err(|error| Fault::Failed(error.to_string()))?;
        answer.add(head, content);
        if head.is_last {
            return Ok(answer);
        }
    }
}
