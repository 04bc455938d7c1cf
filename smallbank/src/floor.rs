//! SmallBank on plain hash maps: the same rows and draws, and nothing else.
//!
//! *Invariants*: each thread has maps of its own. They have as many accounts as its share, numbered from 0, and 2 at least.
//! A transaction that finds its accounts counts as done, and so does a payment that is refused.
//!
//! *Not here*: threads and measurement, which the harness has.

use gannet_benchmarks::{FloorReport, FloorWorkload, Random, Report, Settings, run_floor};
use hashbrown::HashMap;

use crate::{
    AMALGAMATE, Accounts, BALANCE, CHECK, DEPOSIT, DEPOSIT_CHECKING, OVERDRAFT_CHECK, PAYMENT,
    SAVING, SEND_PAYMENT, TRANSACT_SAVINGS, draw_transaction,
};

/// SmallBank without a system around it.
pub struct Floor {
    accounts: Accounts,
    seed: u64,
}

impl Floor {
    pub(crate) fn new(accounts: Accounts, seed: u64) -> Self {
        Self { accounts, seed }
    }

    /// Runs the floor. The loop of its threads is compiled with its transactions.
    #[must_use]
    pub fn run(&self, report: &Report, settings: &Settings) -> FloorReport {
        run_floor(self, report, settings)
    }
}

/// One thread's accounts, numbered from 0.
pub struct Maps {
    accounts: Accounts,
    savings: HashMap<u64, i64>,
    checking: HashMap<u64, i64>,
}

impl FloorWorkload for Floor {
    type Maps = Maps;

    fn populate(&self, _share: u64, shares: u64) -> Maps {
        let accounts = Accounts { count: (self.accounts.count / shares).max(2) };
        let rows =
            || (0..accounts.count).map(|account| (account, Accounts::initial(self.seed, account)));
        Maps {
            accounts,
            savings: rows().map(|(account, (savings, _))| (account, savings)).collect(),
            checking: rows().map(|(account, (_, checking))| (account, checking)).collect(),
        }
    }

    #[inline]
    fn run_one(&self, maps: &mut Maps, random: &mut Random) -> bool {
        let transaction = draw_transaction(random);
        let (a, b) = maps.accounts.draw(random);
        maps.run(transaction, a, b).is_some()
    }
}

impl Maps {
    /// None if an account is missing.
    #[inline]
    fn run(&mut self, transaction: usize, a: u64, b: u64) -> Option<()> {
        match transaction {
            AMALGAMATE => {
                let moved = std::mem::take(self.savings.get_mut(&a)?)
                    + std::mem::take(self.checking.get_mut(&a)?);
                *self.checking.get_mut(&b)? += moved;
            }
            BALANCE => {
                std::hint::black_box(self.savings.get(&a)? + self.checking.get(&a)?);
            }
            DEPOSIT_CHECKING => *self.checking.get_mut(&a)? += DEPOSIT,
            SEND_PAYMENT => {
                let from = self.checking.get_mut(&a)?;
                if *from < PAYMENT {
                    return Some(());
                }
                *from -= PAYMENT;
                *self.checking.get_mut(&b)? += PAYMENT;
            }
            TRANSACT_SAVINGS => *self.savings.get_mut(&a)? += SAVING,
            _ => {
                let savings = *self.savings.get(&a)?;
                let checking = self.checking.get_mut(&a)?;
                *checking -= if savings + *checking >= CHECK { CHECK } else { OVERDRAFT_CHECK };
            }
        }
        Some(())
    }
}
