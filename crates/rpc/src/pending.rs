//! The calls that a client has made and whose answers it has not taken yet.

use crate::fault::Fault;
use crate::frame::Frame;
use distribute_net::{Message, Receiver};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

/// A server's answer to a call.
pub(crate) type Answer = Result<Message, Fault>;

/// The unanswered calls of a client, and the answers that have not been taken yet.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    next: u64,
    calls: HashMap<u64, Slot>,
    /// The number of calls that the server has not answered, including abandoned ones.
    in_flight: usize,
    lost: Option<String>,
    on_loss: OnLoss,
}

/// A function that is called once, when no more answers will arrive.
#[derive(Default)]
struct OnLoss(Option<LossCallback>);

type LossCallback = Box<dyn FnOnce(&str) + Send>;

impl fmt::Debug for OnLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnLoss")
    }
}

#[derive(Debug)]
enum Slot {
    Waiting,
    /// The caller no longer waits for the answer, but the server still executes the call.
    Abandoned,
    Answered(Answer),
}

impl State {
    pub fn has_room(&self, window: usize) -> bool {
        self.in_flight < window
    }

    /// Adds a call if fewer than `window` calls are unanswered, and returns its id; otherwise returns `None`.
    pub fn enter(&mut self, window: usize) -> Option<u64> {
        if !self.has_room(window) {
            return None;
        }
        let id = self.next;
        self.next += 1;
        self.in_flight += 1;
        self.calls.insert(id, Slot::Waiting);
        Some(id)
    }

    /// Removes and returns the answer to a call; `None` if the answer was not received or was already taken.
    pub fn take(&mut self, id: u64) -> Option<Answer> {
        if !self.is_answered(id) {
            return None;
        }
        match self.calls.remove(&id) {
            Some(Slot::Answered(answer)) => Some(answer),
            _ => None,
        }
    }

    pub fn is_answered(&self, id: u64) -> bool {
        matches!(self.calls.get(&id), Some(Slot::Answered(_)))
    }

    /// Abandons a call, so that its answer is discarded. The call counts towards the window until the server has
    /// answered, so that the server never has more calls than the window allows.
    pub fn abandon(&mut self, id: u64) {
        match self.calls.get_mut(&id) {
            Some(slot @ Slot::Waiting) => *slot = Slot::Abandoned,
            Some(Slot::Answered(_)) => drop(self.calls.remove(&id)),
            Some(Slot::Abandoned) | None => {}
        }
    }

    /// Returns the reason why no more answers will arrive, if there is one.
    pub fn lost(&self) -> Option<&str> {
        self.lost.as_deref()
    }

    fn answer(&mut self, id: u64, answer: Answer) {
        match self.calls.get_mut(&id) {
            Some(slot @ Slot::Waiting) => *slot = Slot::Answered(answer),
            Some(Slot::Abandoned) => drop(self.calls.remove(&id)),
            // The answer belongs to no call, or is a second one: no thread waits for it.
            Some(Slot::Answered(_)) | None => return,
        }
        self.in_flight -= 1;
    }
}

impl Pending {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Waits until the state changes, for at most `patience`.
    pub fn wait(&self, mut state: MutexGuard<'_, State>, patience: Duration) {
        self.changed.wait_for(&mut state, patience);
    }

    /// Sets a function that is called once, with the reason, when no more answers will arrive. If this is already the
    /// case, the function is called immediately. An earlier function is replaced.
    pub fn on_loss(&self, call: impl FnOnce(&str) + Send + 'static) {
        let mut state = self.state.lock();
        state.on_loss = OnLoss(Some(Box::new(call)));
        self.wake(state);
    }

    /// Wakes all waiting threads. Calls the function of [`on_loss`](Self::on_loss) if no more answers will arrive.
    fn wake(&self, mut state: MutexGuard<'_, State>) {
        let lost = state.lost.clone().and_then(|reason| Some((reason, state.on_loss.0.take()?)));
        drop(state);
        self.changed.notify_all();
        if let Some((reason, call)) = lost {
            call(&reason);
        }
    }

    /// Abandons a call: see [`State::abandon`].
    pub fn abandon(&self, id: u64) {
        self.state.lock().abandon(id);
    }
}

impl Receiver for Pending {
    fn deliver(&self, _from: usize, message: Message) {
        let mut state = self.state.lock();
        match Frame::decode(message) {
            Ok(Frame::Answer(id, message)) => state.answer(id, Ok(message)),
            Ok(Frame::Failed(id, fault)) => state.answer(id, Err(fault)),
            Ok(Frame::Call { .. }) | Err(_) => {
                state.lost.get_or_insert("it sent something other than an answer".to_owned());
            }
        }
        self.wake(state);
    }

    fn mark_lost(&self, _from: usize, reason: String) {
        let mut state = self.state.lock();
        state.lost.get_or_insert(reason);
        self.wake(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::FaultKind;

    fn answer(pending: &Pending, id: u64) {
        pending.deliver(0, Frame::Answer(id, Message::new("", vec![id as u8])).encode());
    }

    #[test]
    fn answers_come_in_any_order_and_make_room() {
        let pending = Pending::default();
        let enter = || pending.lock().enter(2);
        assert_eq!([enter(), enter(), enter()], [Some(0), Some(1), None]);
        answer(&pending, 1);
        assert_eq!(pending.lock().take(0), None);
        assert_eq!(pending.lock().take(1), Some(Ok(Message::new("", vec![1]))));
        assert_eq!(pending.lock().take(1), None);
        assert_eq!([enter(), enter()], [Some(2), None]);
        pending.deliver(0, Frame::Failed(0, Fault::new(FaultKind::Failed, "no")).encode());
        assert_eq!(pending.lock().take(0), Some(Err(Fault::new(FaultKind::Failed, "no"))));
    }

    #[test]
    fn an_abandoned_call_keeps_its_slot_until_its_response() {
        let pending = Pending::default();
        let id = pending.lock().enter(1).unwrap();
        pending.abandon(id);
        assert_eq!(pending.lock().enter(1), None);
        answer(&pending, id);
        // Answers to no call do not make room either.
        answer(&pending, id);
        answer(&pending, 77);
        assert_eq!(pending.lock().enter(1), Some(1));
        assert_eq!(pending.lock().enter(1), None);
        answer(&pending, 1);
        pending.abandon(1);
        assert!(pending.lock().calls.is_empty());
    }

    #[test]
    fn an_invalid_response_is_a_loss() {
        let pending = Pending::default();
        pending.deliver(0, Message::new("garbage", ""));
        let (says, said) = std::sync::mpsc::channel();
        pending.mark_lost(0, "later".to_owned());
        assert_eq!(pending.lock().lost(), Some("it sent something other than an answer"));
        // The function is called once, even if it is set afterwards.
        let again = says.clone();
        pending.on_loss(move |reason| says.send(reason.to_owned()).unwrap());
        pending.mark_lost(0, "later".to_owned());
        assert_eq!(said.try_iter().collect::<Vec<_>>(), ["it sent something other than an answer"]);
        let pending = Pending::default();
        pending.on_loss(move |reason| again.send(reason.to_owned()).unwrap());
        assert_eq!(said.try_iter().count(), 0);
        pending.mark_lost(0, "now".to_owned());
        assert_eq!(said.try_iter().collect::<Vec<_>>(), ["now"]);
    }
}
