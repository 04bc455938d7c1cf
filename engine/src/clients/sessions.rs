//! The sessions of a gateway: the transaction of each client, which outlives the client's connection for a while.
//!
//! ```text
//! begin ─▶ connected ──── the connection breaks ────▶ without connection ──── RESUME_TIMEOUT ────▶ forgotten
//!              ▲  └─ the client leaves ─▶ forgotten       │
//!              └──────────── resume ──────────────────────┘
//! ```
//! *Invariants*: a session has at most one connection: a later one ends the earlier. Sessions with a connection are as many as the
//! gateway takes, and those without one no more than that. After [`Sessions::close`] none begins or goes on.
//!
//! *Not here*: what is requested, in `gateway.rs`.

use std::collections::BTreeMap;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clients::message::SessionId;
use crate::link::LinkEnd;

/// How long a session waits for another connection.
const RESUME_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for transactions that commit while the gateway closes.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// The sessions of a gateway, and what each of them has: `T`.
pub(super) struct Sessions<T> {
    connected_max: usize,
    state: Mutex<State<T>>,
    /// A session has got a connection, or is forgotten.
    changed: Condvar,
}

struct State<T> {
    is_closed: bool,
    by_id: BTreeMap<SessionId, Entry<T>>,
}

struct Entry<T> {
    session: Arc<Session<T>>,
    /// Its connection, by number; none after that has broken.
    connection: Option<(u64, TcpStream)>,
}

/// A session of a client.
pub(super) struct Session<T> {
    /// Requests and answers.
    pub(super) end: LinkEnd,
    /// What is under way in the session. A request that runs holds it.
    pub(super) work: Mutex<T>,
}

/// Why no session begins.
pub(super) enum NoSession {
    /// There are as many as the gateway takes.
    Full,
    /// The gateway closes, or the system has no random numbers.
    Closed,
}

impl<T: Default> Sessions<T> {
    /// No sessions; at most so many will have a connection.
    pub(super) fn new(connected_max: usize) -> Self {
        let state = Mutex::new(State { is_closed: false, by_id: BTreeMap::new() });
        Self { connected_max, state, changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a session with a connection.
    pub(super) fn begin(
        &self,
        number: u64,
        stream: TcpStream,
    ) -> Result<(SessionId, Arc<Session<T>>), NoSession> {
        let mut state = self.lock();
        let mut id = SessionId::default();
        if state.is_closed || getrandom::fill(&mut id).is_err() {
            return Err(NoSession::Closed);
        }
        if state.connected() >= self.connected_max {
            return Err(NoSession::Full);
        }
        let session = Arc::new(Session { end: LinkEnd::default(), work: Mutex::new(T::default()) });
        let connection = Some((number, stream));
        state.by_id.insert(id, Entry { session: Arc::clone(&session), connection });
        Ok((id, session))
    }

    /// Goes on with a session on another connection, if the session is not forgotten.
    pub(super) fn resume(
        &self,
        id: SessionId,
        number: u64,
        stream: TcpStream,
    ) -> Option<Arc<Session<T>>> {
        let mut state = self.lock();
        if state.is_closed {
            return None;
        }
        let entry = state.by_id.get_mut(&id)?;
        if let Some((_, earlier)) = entry.connection.replace((number, stream)) {
            // It may have ended.
            let _ = earlier.shutdown(Shutdown::Both);
        }
        let session = Arc::clone(&entry.session);
        self.changed.notify_all();
        Some(session)
    }

    /// A connection of a session has ended. The session waits for another one if it `outlives` this one, and is forgotten then, or
    /// else at once. Returns when it has another one, or is forgotten.
    pub(super) fn end(&self, id: SessionId, number: u64, outlives: bool) {
        let mut state = self.lock();
        match state.by_id.get_mut(&id) {
            Some(Entry { connection, .. })
                if connection.as_ref().is_some_and(|(of, _)| *of == number) =>
            {
                *connection = None;
            }
            // Another connection has taken its place.
            Some(_) | None => return,
        }
        let without = state.by_id.len() - state.connected();
        if outlives && without <= self.connected_max {
            let is_waiting = |state: &mut State<T>| {
                let entry = state.by_id.get(&id);
                !state.is_closed && entry.is_some_and(|entry| entry.connection.is_none())
            };
            let waited = self.changed.wait_timeout_while(state, RESUME_TIMEOUT, is_waiting);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        if state.by_id.get(&id).is_some_and(|entry| entry.connection.is_none()) {
            state.by_id.remove(&id);
        }
        self.changed.notify_all();
    }

    /// Ends all connections after the requests under way are answered, and forgets the sessions.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        for (_, stream) in state.by_id.values().filter_map(|entry| entry.connection.as_ref()) {
            // It may have ended.
            let _ = stream.shutdown(Shutdown::Read);
        }
        self.changed.notify_all();
        let some_are_left = |state: &mut State<T>| !state.by_id.is_empty();
        drop(self.changed.wait_timeout_while(state, END_TIMEOUT, some_are_left));
    }
}

impl<T> State<T> {
    /// Sessions that have a connection.
    fn connected(&self) -> usize {
        self.by_id.values().filter(|entry| entry.connection.is_some()).count()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use super::*;

    /// Both ends of a connection.
    fn stream() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (listener.accept().unwrap().0, client)
    }

    #[test]
    fn a_session_outlives_its_connection_and_has_one_at_a_time() {
        let sessions = Sessions::<u64>::new(1);
        let ((first, mut of_client), (second, _client)) = (stream(), stream());
        let (id, session) = sessions.begin(1, first).ok().unwrap();
        *session.work.lock().unwrap() = 7;
        assert!(matches!(sessions.begin(2, stream().0), Err(NoSession::Full)));
        let resumed = sessions.resume(id, 2, second).unwrap();
        assert_eq!(*resumed.work.lock().unwrap(), 7);
        assert_eq!(of_client.read(&mut [0]).unwrap(), 0, "the earlier connection has ended");
        // The end of the earlier one is not the end of the session.
        sessions.end(id, 1, false);
        assert!(sessions.resume(id, 3, stream().0).is_some());
        // One that has lost its connection makes room for another.
        std::thread::scope(|scope| {
            let ended = scope.spawn(|| sessions.end(id, 3, true));
            while sessions.lock().connected() > 0 {
                std::thread::yield_now();
            }
            assert!(!ended.is_finished());
            assert!(sessions.resume(id, 4, stream().0).is_some());
        });
        sessions.end(id, 4, false);
        assert!(sessions.resume(id, 5, stream().0).is_none());
        assert!(sessions.resume([0; 16], 6, stream().0).is_none());
    }

    #[test]
    fn no_session_begins_after_the_gateway_has_closed() {
        let sessions = Sessions::<()>::new(2);
        let (id, _session) = sessions.begin(1, stream().0).ok().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| sessions.end(id, 1, true));
            // Returns before a session without connection would be forgotten.
            sessions.close();
        });
        assert!(sessions.lock().by_id.is_empty());
        assert!(matches!(sessions.begin(2, stream().0), Err(NoSession::Closed)));
        assert!(sessions.resume(id, 3, stream().0).is_none());
    }
}
