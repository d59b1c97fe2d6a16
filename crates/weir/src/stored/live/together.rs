//! Group commit of changes that are queued while another one is made. The changes are checked one after the other,
//! compiled once, written to disk once and applied by the workers once. Each has its own revision and its own response.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::{OwnedMutexGuard, oneshot};
use weir_admin::{Changed, Refused};
use weir_store::{Commit, Key};

use crate::source::findings::log_findings;

use super::{Shared, State, blocking, unchecked};

/// A queued change.
#[derive(Debug)]
pub(super) struct Waiting {
    commit: Commit,
    answer: oneshot::Sender<Result<Changed, Refused>>,
}

impl Shared {
    /// Makes a change as part of a group: with the changes queued when its turn comes, or in the turn of another one.
    pub(super) async fn change_in_turn(&self, commit: Commit) -> Result<Changed, Refused> {
        let (answer, mut answered) = oneshot::channel();
        self.waiting().push(Waiting { commit, answer });
        let turn = tokio::select! {
            biased;
            answer = &mut answered => return answer.unwrap_or_else(|_| Err(unchecked())),
            turn = Arc::clone(&self.state).lock_owned() => turn,
        };
        let together = std::mem::take(&mut *self.waiting());
        self.make_together(turn, together).await;
        answered.await.unwrap_or_else(|_| Err(unchecked()))
    }

    async fn make_together(&self, state: OwnedMutexGuard<State>, together: Vec<Waiting>) {
        let (commits, answers): (Vec<Commit>, Vec<_>) =
            together.into_iter().map(|waiting| (waiting.commit, waiting.answer)).unzip();
        let done = match commits.as_slice() {
            [] => return,
            [one] => {
                let done = self.change_once(state, one.clone(), false, false, false).await;
                vec![done.map(Option::unwrap_or_default)]
            }
            _ => match self.try_together(state, &commits).await {
                Some(changed) => changed.into_iter().map(Ok).collect(),
                None => {
                    let mut done = Vec::with_capacity(commits.len());
                    for commit in commits {
                        done.push(self.change(commit, false, false).await);
                    }
                    done
                }
            },
        };
        for (answer, done) in answers.into_iter().zip(done) {
            // The requester may not wait any more.
            let _ = answer.send(done);
        }
    }

    /// Commits the changes as a group. Returns `None`, with nothing changed, if each has to be made alone.
    async fn try_together(&self, mut state: OwnedMutexGuard<State>, commits: &[Commit]) -> Option<Vec<Changed>> {
        let began = Instant::now();
        self.make_sure(&mut state).await.ok()?;
        let (rules, store, checked) = (Arc::clone(&self.rules), Arc::clone(&self.store), commits.to_vec());
        let (mut state, checked) = blocking(state, move |state| {
            let (candidate, undo) = state.check_together(&rules, &checked)?;
            Some((candidate, undo, store.commit_here(&checked)))
        })
        .await
        .ok()?;
        let (candidate, undo, kept) = checked?;
        let revisions = kept.and_then(Result::ok);
        let Some(revisions) = revisions else {
            state.resources.undo(undo);
            self.rules.compiler.sweep();
            return None;
        };
        let first = state.revision + 1;
        if revisions.iter().copied().eq((first..).take(commits.len())) {
            state.revision += commits.len() as u64;
        } else {
            // Resources have expired in between. The watch reports them, and these commits again, in order.
            for ((commit, assumed), revision) in commits.iter().zip(first..).zip(&revisions) {
                let keys: Vec<Key> = commit.changes.iter().map(|change| change.key.clone()).collect();
                state.settle(&keys, assumed, *revision);
            }
        }
        let changed = commits.iter().zip(revisions);
        let changed: Vec<Changed> =
            changed.map(|(commit, revision)| Changed { revision, warnings: candidate.warnings_of(commit) }).collect();
        changed.iter().for_each(|changed| log_findings(&changed.warnings));
        let one = commits.iter().all(|commit| commit.author == commits[0].author);
        self.serve(state, candidate, began, if one { &commits[0].author } else { "several" }).await;
        Some(changed)
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
