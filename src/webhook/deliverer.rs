//! Delivers the events of one event subscription, while this node leads: one request at a time.
//!
//! What is to be done next is decided by [`Course::next`]; here it is done.
//!
//! Invariant: before each request a majority has confirmed that this node leads, and the rows were read after that; in
//! modes with one event for each request, before each [`Run`] of them, which is short.
//! Invariant: what became of a request, or of a run, is in the log before the next one begins, unless this node can't
//! tell the log, and then the same is sent again.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::endpoint::{Endpoint, EndpointError, Reply};
use super::files::Files;
use super::leader::Leader;
use super::question::Question;
use super::rows::{Position, Rows};
use crate::base::proto::command::EventProgress;
use crate::base::proto::command::command::Kind;
use crate::base::proto::state::{Event, EventSubscription, EventSubscriptionOptions};
use crate::base::time::elapsed_now;
use crate::events::answer::{Consequence, DeathReason, End};
use crate::events::modes::{Form, Parcel, Request};
use crate::events::next::{Course, Next, Now, Sent, View, is_progress};
use crate::events::run::{Run, Then};
use crate::machine::read_events;
use crate::telemetry::labels::Delivery;
use crate::telemetry::metrics::Metrics;

/// Before a leader that is not confirmed, or can't tell the log something, tries again.
const RETRY: Duration = Duration::from_millis(200);

/// Between two looks at rows that change all the time, while there is nothing to send.
const LOOK_PAUSE: Duration = Duration::from_millis(10);

/// The same while nothing can be sent, so that what is recorded meanwhile is of no interest.
const HOLD_PAUSE: Duration = Duration::from_millis(200);

/// Delivers the events of one event subscription.
pub(crate) struct Deliverer {
    /// Its name.
    pub(crate) name: String,
    /// The replica.
    pub(crate) leader: Arc<dyn Leader>,
    /// What requests prove by who sends them.
    pub(crate) files: Files,
    /// What is counted.
    pub(crate) metrics: Arc<Metrics>,
}

/// What goes on from one step to the next.
struct Going {
    course: Course,
    position: Position,
    endpoint: Option<Endpoint>,
    /// A majority has confirmed this node, and the step under way is the first one since: the ticks when it was asked.
    confirmed: Option<u64>,
    changes: watch::Receiver<u64>,
}

fn random() -> u32 {
    // Without random numbers all wait for the same time, which is not wrong.
    getrandom::u32().unwrap_or(u32::MAX / 2)
}

impl Deliverer {
    fn now(&self) -> Now {
        Now {
            ticks: elapsed_now().micros() / 1_000,
            log: self.leader.log_time(),
        }
    }

    /// Runs until the event subscription has ended. Who has started it ends it when this node does not lead any more.
    pub(crate) async fn run(self) {
        let mut going = Going {
            course: Course::default(),
            position: Position::default(),
            endpoint: None,
            confirmed: None,
            changes: self.leader.changes(),
        };
        loop {
            going.changes.borrow_and_update();
            let (position, sought) = (going.position.clone(), going.course.seeks());
            let rows = Rows::read(self.leader.backing(), &self.name, position, sought).await;
            let Some(rows) = rows else {
                return;
            };
            if going.position.follow(&rows) {
                // Something else is asked for now: what is known of the endpoint is of no use.
                going.course = going.course.anew();
                going.endpoint = None;
                continue;
            }
            going.course.follow(&rows.row);
            if rows.reads_on(&mut going.position, &mut going.course) {
                continue;
            }
            self.step(&mut going, &rows, &rows.view()).await;
        }
    }

    async fn step(&self, going: &mut Going, rows: &Rows, view: &View<'_>) {
        let now = self.now();
        let next = going.course.next(view, now);
        let confirmed = going.confirmed.take();
        match next {
            Next::Wait(until) => return self.wait(going, until, now).await,
            Next::Hold(until) => return self.hold(going, view, until, now).await,
            _ => {}
        }
        let is_request = matches!(
            next,
            Next::Ask | Next::SendNew(_) | Next::SendAnother | Next::Probe | Next::SendParked
        );
        let Some(asked) = confirmed.or((!is_request).then_some(0)) else {
            match self.leader.confirm().await {
                true => going.confirmed = Some(now.ticks),
                false => tokio::time::sleep(RETRY).await,
            }
            return;
        };
        let progress = match next {
            Next::Wait(_) | Next::Hold(_) => return,
            Next::Skip(_) => going.course.skipped(view, now),
            Next::Expire => going.course.expired(view, rows.wanted(), now),
            Next::Bury(reason) => match rows.parked() {
                Some(parked) => view.buried(parked, reason),
                None => return,
            },
            Next::Ask => self.ask(going, rows, view).await,
            Next::SendNew(_) if Form::of(&self.name, view.options).is_single() => {
                self.send_run(going, rows, view, asked).await
            }
            Next::SendNew(most) => self.send_new(going, rows, view, most).await,
            Next::SendAnother => self.send_another(going, rows, view).await,
            Next::Probe => self.probe(going, rows, view).await,
            Next::SendParked => self.send_parked(going, rows, view).await,
        };
        self.tell(going, rows, progress).await;
    }

    /// Waits for a time, or for a change of rows.
    async fn wait(&self, going: &mut Going, until: Option<u64>, now: Now) {
        tokio::select! {
            () = sleep_until(until, now) => {}
            () = changed(&mut going.changes) => tokio::time::sleep(LOOK_PAUSE).await,
        }
    }

    /// Waits for a time, or until an operator has asked for something else. Events that are recorded meanwhile do not
    /// make it look at them.
    async fn hold(&self, going: &mut Going, view: &View<'_>, until: u64, now: Now) {
        let standing = |row: &EventSubscription| {
            let is_there = row.options.is_some();
            (is_there, row.revision, row.state, row.last_error.is_empty())
        };
        let is_changed = async {
            loop {
                tokio::time::sleep(HOLD_PAUSE).await;
                changed(&mut going.changes).await;
                let row = self.row().await;
                if row.is_none_or(|row| standing(&row) != standing(view.row)) {
                    return;
                }
            }
        };
        tokio::select! {
            () = sleep_until(Some(until), now) => {}
            () = is_changed => {}
        }
    }

    async fn row(&self) -> Option<EventSubscription> {
        let (backing, name) = (self.leader.backing(), self.name.clone());
        let read = move || read_events::subscription(&*backing, &name);
        // It does not panic.
        tokio::task::spawn_blocking(read).await.ok().flatten()
    }

    /// Tells the log what became of events.
    async fn tell(&self, going: &mut Going, rows: &Rows, progress: EventProgress) {
        if !is_progress(&progress) {
            return;
        }
        let reasons: Vec<u32> = progress.dead.iter().map(|dead| dead.reason).collect();
        let told = self.leader.account(Kind::EventProgress(progress)).await;
        if !told {
            going.confirmed = None;
            return tokio::time::sleep(RETRY).await;
        }
        if reasons.is_empty() {
            return;
        }
        // The log may have refused it: somebody has changed what is asked for.
        let before = rows.view().row.dead_lettered;
        let is_taken = |row: EventSubscription| row.dead_lettered > before;
        if !self.row().await.is_some_and(is_taken) {
            return;
        }
        for reason in reasons {
            if let Some(reason) = DeathReason::from_number(reason) {
                self.metrics.events_dead_lettered.of(reason).increment();
            }
        }
    }

    /// The endpoint, made anew when there is none, with what proves who sends as it is now.
    async fn endpoint(
        &self,
        going: &mut Going,
        options: &EventSubscriptionOptions,
    ) -> Result<Endpoint, EndpointError> {
        let (options, files) = (options.clone(), self.files.clone());
        let kept = going.endpoint.take();
        let made = tokio::task::spawn_blocking(move || match kept {
            Some(mut endpoint) => {
                endpoint.prove_anew(&options, &files)?;
                Ok(endpoint)
            }
            None => Endpoint::new(&options, &files),
        });
        made.await.unwrap_or_else(|_| Err(EndpointError::Stopped))
    }

    async fn send(
        &self,
        going: &mut Going,
        options: &EventSubscriptionOptions,
        request: Request,
        id: &str,
    ) -> Reply {
        let endpoint = match self.endpoint(going, options).await {
            Ok(endpoint) => endpoint,
            Err(error) => return Reply::unable(&error),
        };
        let reply = endpoint.send(request, id, self.leader.wall_time()).await;
        // A connection, or a file, may be at fault: both are made anew the next time.
        if matches!(reply.end, End::Status(..)) {
            going.endpoint = Some(endpoint);
        }
        reply
    }

    async fn ask(&self, going: &mut Going, rows: &Rows, view: &View<'_>) -> EventProgress {
        going.course.begin(view, self.now());
        let question = Question::new(&self.name, view.options);
        let request = question.request(&rows.settings, self.now().log);
        let id = question.id();
        let reply = self.send(going, view.options, request, &id).await;
        let given = question.judge(&reply);
        let error = format!("no consent: {}", reply.text);
        if given.is_none() {
            tracing::info!(
                name = self.name,
                error,
                "an endpoint has not said that it wants events"
            );
        }
        let how = (reply.end, error.as_str());
        going.course.asked(view, given, how, self.now(), random())
    }

    /// Asks the endpoint something that it answers if it is there.
    async fn probe(&self, going: &mut Going, rows: &Rows, view: &View<'_>) -> EventProgress {
        going.course.begin(view, self.now());
        let question = Question::that_probes(&self.name, view.options);
        let request = question.request(&rows.settings, self.now().log);
        let reply = self
            .send(going, view.options, request, &question.id())
            .await;
        let how = (reply.end, reply.text.as_str());
        going.course.probed(view, how, self.now(), random())
    }

    async fn send_new(
        &self,
        going: &mut Going,
        rows: &Rows,
        view: &View<'_>,
        most: usize,
    ) -> EventProgress {
        let events = rows.wanted().take(most);
        self.send_events(going, rows, view, events).await
    }

    /// Sends events one by one, until something else is to be done than that.
    async fn send_run(
        &self,
        going: &mut Going,
        rows: &Rows,
        view: &View<'_>,
        asked: u64,
    ) -> EventProgress {
        let mut run = Run::new(view, asked, self.now());
        let mut row = rows.row.clone();
        for (place, (number, event)) in rows.wanted().enumerate() {
            // The first one is sent however long a majority took to confirm it: or a slow disk could hold up all.
            if place > 0 {
                let goes_on = self.goes_on(going, rows, &mut run, (number, event)).await;
                match goes_on {
                    Some(ahead) => row = ahead,
                    None => break,
                }
            }
            let view = rows.view_of(&row, number, event);
            let events = std::iter::once((number, event));
            let progress = self.send_events(going, rows, &view, events).await;
            if !run.add(progress) {
                break;
            }
        }
        run.over()
    }

    /// Waits until the next event of a run may be sent; the row as it is then. `None`: the run is over.
    async fn goes_on(
        &self,
        going: &Going,
        rows: &Rows,
        run: &mut Run,
        (number, event): (u64, &Event),
    ) -> Option<EventSubscription> {
        loop {
            let row = run.ahead(&rows.row, self.row().await?)?;
            let now = self.now();
            match run.then(&going.course, &rows.view_of(&row, number, event), now) {
                Then::Send => return Some(row),
                Then::Pause(until) => sleep_until(Some(until), now).await,
                Then::Confirm if self.leader.confirm().await => run.confirmed(now.ticks),
                Then::Confirm | Then::Tell => return None,
            }
        }
    }

    async fn send_events<'e>(
        &self,
        going: &mut Going,
        rows: &'e Rows,
        view: &View<'_>,
        events: impl Iterator<Item = (u64, &'e Event)>,
    ) -> EventProgress {
        let form = Form::of(&self.name, view.options);
        let mut parcel = Parcel::new(form, &rows.settings);
        for (number, event) in events {
            if !parcel.push(number, event) {
                break;
            }
        }
        let sent = Sent::New(parcel.numbers());
        let first = parcel.numbers().first();
        let attempts = first.map_or(0, |first| going.course.requests(*first));
        self.deliver(going, view, &parcel, &sent, attempts).await
    }

    /// Sends a new event before its turn.
    async fn send_another(&self, going: &mut Going, rows: &Rows, view: &View<'_>) -> EventProgress {
        let Some((number, event)) = view.another else {
            return crate::events::next::no_progress(&self.name, view.row);
        };
        let form = Form::of(&self.name, view.options);
        let mut parcel = Parcel::new(form, &rows.settings);
        parcel.push(number, event);
        let is_next = rows.is_next(number);
        let sent = Sent::Another { number, is_next };
        self.deliver(going, view, &parcel, &sent, 0).await
    }

    async fn send_parked(&self, going: &mut Going, rows: &Rows, view: &View<'_>) -> EventProgress {
        let form = Form::of(&self.name, view.options);
        let mut parcel = Parcel::new(form, &rows.settings);
        let parked = rows.parked();
        let event = parked.and_then(|parked| parked.row.event.as_ref());
        let (Some(parked), Some(event)) = (parked, event) else {
            return crate::events::next::no_progress(&self.name, view.row);
        };
        parcel.push(parked.number, event);
        let attempts = parked.row.attempts;
        let sent = Sent::Parked(parked);
        self.deliver(going, view, &parcel, &sent, attempts).await
    }

    async fn deliver(
        &self,
        going: &mut Going,
        view: &View<'_>,
        parcel: &Parcel<'_>,
        sent: &Sent<'_>,
        attempts: u32,
    ) -> EventProgress {
        going.course.begin(view, self.now());
        let request = parcel.request(attempts);
        let began = elapsed_now();
        let reply = self.send(going, view.options, request, &parcel.id()).await;
        let metrics = &self.metrics;
        let taken = elapsed_now().since(began);
        metrics.event_delivery_seconds.observe(taken);
        let now = self.now();
        let progress = going
            .course
            .ended(view, sent, reply.end, &reply.text, now, random());
        metrics
            .event_deliveries
            .of(outcome(reply.end, &progress))
            .increment();
        self.tell_of_parked(reply.end, &progress);
        if reply.end.consequence() != Consequence::Delivered {
            tracing::debug!(
                name = self.name,
                events = parcel.numbers().len(),
                first = parcel.numbers().first(),
                error = reply.text,
                "events were not delivered"
            );
        }
        progress
    }
}

impl Deliverer {
    /// Tells of events that are parked from now on. Where others had to be answered first, their request was counted
    /// for what it was.
    fn tell_of_parked(&self, end: End, progress: &EventProgress) {
        for parked in progress
            .parked
            .iter()
            .filter(|parked| parked.was_due_ms == 0)
        {
            if outcome(end, progress) != Delivery::Parked {
                let parked = self.metrics.event_deliveries.of(Delivery::Parked);
                parked.increment();
            }
            tracing::info!(
                name = self.name,
                event = parked.number,
                "an event is parked: the endpoint does not take it, and takes others"
            );
        }
    }
}

async fn sleep_until(until: Option<u64>, now: Now) {
    match until {
        Some(until) => {
            let ms = until.saturating_sub(now.ticks).max(1);
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
        None => std::future::pending().await,
    }
}

async fn changed(changes: &mut watch::Receiver<u64>) {
    if changes.changed().await.is_err() {
        // The node stops.
        std::future::pending::<()>().await;
    }
}

fn outcome(end: End, progress: &EventProgress) -> Delivery {
    match end.consequence() {
        Consequence::Delivered => Delivery::Delivered,
        Consequence::Suspect if !progress.parked.is_empty() => Delivery::Parked,
        Consequence::Suspect | Consequence::Refused => Delivery::Refused,
        Consequence::Unanswered if end == End::TimedOut => Delivery::TimedOut,
        Consequence::Unanswered | Consequence::Down(_) | Consequence::Gone => {
            Delivery::EndpointDown
        }
    }
}
