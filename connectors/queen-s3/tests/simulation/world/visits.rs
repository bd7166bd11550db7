//! Which situations a run has met: one that no run meets any more is one that nothing is proven of.

/// Names situations, with what they are.
macro_rules! situations {
    ($($(#[$meta:meta])* $name:ident: $text:literal,)+) => {
        /// What a run can meet.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Situation {
            $($(#[$meta])* $name,)+
        }

        impl Situation {
            /// All of them, in order.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// What it is, in a few words.
            pub fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }
        }
    };
}

situations! {
    // Processes.
    Crashed: "a call crashes its process, and has no effect",
    CrashedAfterwards: "a call crashes its process, and has its effect later",
    Killed: "a process is killed",
    Paused: "a process is paused, and runs on",
    Stopped: "a process stops in time when it is told to",
    Overdue: "a process is killed that does not stop in time",
    // The network.
    Refused: "a call is refused",
    AnswerLost: "a call has its effect, and its answer is lost",
    Late: "a call has its effect after its caller has given up",
    Twice: "a call has its effect twice",
    BodyCut: "an answer is cut off",
    // Ownership.
    TakenOver: "another instance takes a lease over",
    ClaimedAgain: "an instance claims a lease that was its own",
    LeaseVanished: "a lease row vanishes",
    FenceAtLease: "the fence is lost as a lease is refreshed",
    FenceAtIntent: "the fence is lost as an intent is written",
    FenceAtCommit: "the fence is lost as a pointer is written",
    // Windows.
    Begun: "a window is met of which an intent is all there is",
    HalfUp: "a window is met of which objects are up, and no manifest",
    Uncommitted: "a window is met whose manifest is up, and no pointer at it",
    IdleMove: "a pointer moves without a window",
    LinesMerged: "a window of JSON lines in one object is committed",
    LinesApart: "a window of JSON lines in an object for each partition is committed",
    RowsMerged: "a window of Parquet in one object is committed",
    RowsApart: "a window of Parquet in an object for each partition is committed",
    LateRecords: "a manifest names records as late",
    LostRecords: "a manifest names records as lost",
    Contradicted: "an object lacks a record that came late and belongs into it",
    // Uploads.
    InParts: "an object goes up in parts",
    Expired: "an upload is forgotten while it is under way",
    Miscounted: "an upload is answered as one of other parts",
    LeftOpen: "an upload is left open by a process that is gone",
    // Reading.
    Lines: "records are answered as JSON",
    Segments: "records are answered in segments",
    Described: "records are answered in segments with descriptions",
    Unreadable: "a segment that cannot be read is among those answered",
    LivesUntold: "an answer does not tell which life it is of",
    ForeignLives: "an answer names a life that no listing knows",
    Degraded: "a safeTime is degraded",
    // The log.
    PromiseBroken: "a record becomes visible below what was promised",
    Retained: "segments are deleted for their age",
    PartitionEnded: "a partition is deleted",
    EndedAsItWasRead: "a partition is deleted with a fetch of it on its way",
    Reborn: "a partition is made again as soon as it is deleted",
    QueueRemade: "a queue is deleted and made again",
    ClockAhead: "the broker's clock jumps ahead",
    ClockBack: "the broker's clock steps back",
    // Checkpoints.
    Restored: "reading begins from a checkpoint that is right",
    CheckpointLost: "a checkpoint is lost",
    CheckpointDamaged: "a checkpoint is damaged",
    // Disasters.
    StoreOlder: "the key/value store comes back older",
    DocumentsLost: "a queue's documents are lost",
    ForeignManifest: "another lake's manifest lies where the next one is to be",
    Adopted: "a lake without documents is adopted",
    Unnamed: "objects lie where the next window's are to be, and no intent names them",
}

/// How often a run has met each situation.
#[derive(Clone, Debug)]
pub struct Visits(Vec<u64>);

impl Default for Visits {
    fn default() -> Self {
        Self(vec![0; Situation::ALL.len()])
    }
}

impl Visits {
    /// Counts one that is met.
    pub fn met(&mut self, situation: Situation) {
        self.0[situation as usize] += 1;
    }

    /// The same, `times`.
    pub fn met_times(&mut self, situation: Situation, times: u64) {
        self.0[situation as usize] += times;
    }

    /// How often it was met.
    pub fn of(&self, situation: Situation) -> u64 {
        self.0[situation as usize]
    }
}
