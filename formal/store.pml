/* A lease in a store outside the database, with the registry's row as the issuer of tokens.
 *
 * Obtain has four steps, with a pause of any length between them: read the token, take the store's
 * lease, bump the token if it is still the one that was read, look at one's own clock. The store is
 * not asked again before the first renewal. The fenced mark is one step here: lease.pml shows why it
 * may be. README.md says what is proved, and which broken variants (-D...) must fail.
 */

#ifndef HOLDERS
#define HOLDERS 3
#endif
#ifndef ROUNDS
#define ROUNDS 1                  /* acquisitions of each holder */
#endif
#ifndef LEASE
#define LEASE 2                   /* in ticks of the clock */
#endif
#define NOBODY 0

byte lessee = NOBODY;             /* the store: the lock id that has the lease */
byte left;                        /*            what is left of it */
byte token;                       /* the row: the last token that was issued */
byte owner = NOBODY;              /*          the lock id to which it was issued */

bool held[HOLDERS];               /* a holder's own belief: obtained, no loss noticed, */
byte deadline[HOLDERS];           /* and this is left until its local deadline */
byte asked[HOLDERS];              /* the deadline that the question under way would buy */
byte lock_id[HOLDERS];

byte marked;                      /* the token of the last mark that was accepted */
bool emptied;                     /* the store has lost all that it knew */

#define believes(h) (held[h] && deadline[h] > 0)
#define true_holder(h) (held[h] && lessee == lock_id[h])
#if HOLDERS == 2
#define believers (believes(0) + believes(1))
#define true_holders (true_holder(0) || true_holder(1))
#define running (deadline[0] + deadline[1] + asked[0] + asked[1])
#else
#define believers (believes(0) + believes(1) + believes(2))
#define true_holders (true_holder(0) || true_holder(1) || true_holder(2))
#define running (deadline[0] + deadline[1] + deadline[2] + asked[0] + asked[1] + asked[2])
#endif

inline check_belief() { assert(believers <= 1 || emptied) }

inline issue() {
    token++;
    assert(token > marked);       /* tokens never repeat and never go down */
    assert(!true_holders)         /* nobody fences off the one that has the lease */
}

inline accept() {
    assert(mine == token);        /* no mark of a stale holder after a newer bump, */
    assert(mine >= marked);       /* nor after a newer mark */
    marked = mine
}

inline believe() {
    if
    :: asked[me] > deadline[me] -> deadline[me] = asked[me]
    :: else
    fi;
    asked[me] = 0
}

inline give_up() { d_step { held[me] = false; deadline[me] = 0; asked[me] = 0 } }

inline vacate() {
#ifdef BLIND_RELEASE
    atomic { lessee = NOBODY; left = 0 }          /* broken: whoever has the lease */
#else
    atomic {
        if
        :: lessee == id -> lessee = NOBODY; left = 0
        :: else
        fi
    }
#endif
}

active proctype Clock() {
    byte h;
end:
    do
    :: d_step {
        left + running > 0 ->
        left = (left > 0 -> left - 1 : 0);
        lessee = (left > 0 -> lessee : NOBODY);
        for (h : 0 .. HOLDERS - 1) {
            deadline[h] = (deadline[h] > 0 -> deadline[h] - 1 : 0);
            asked[h] = (asked[h] > 0 -> asked[h] - 1 : 0)
        }
        h = 0
       }
    od
}

/* The store is restarted without its data. */
active proctype Outage() {
end:
    atomic { lessee != NOBODY -> lessee = NOBODY; left = 0; emptied = true }
}

proctype Holder(byte me) {
    byte round, id, seen, mine;
    do
    :: round == ROUNDS -> break
    :: round < ROUNDS ->
        d_step {
            round++; id = me * ROUNDS + round; lock_id[me] = id;
            mine = 0; seen = token; asked[me] = LEASE
        };
        atomic {                                            /* take the lease */
            if
            :: lessee == NOBODY -> lessee = id; left = LEASE; mine = 1
            :: else -> give_up()
            fi
        };
        if
        :: mine == 0
        :: mine == 1 ->
            atomic {                                        /* bump the token */
                mine = 0;
                if
#ifdef BLIND_BUMP
                :: true -> issue(); owner = id; mine = token    /* broken: whatever was read */
#else
                :: token == seen -> issue(); owner = id; mine = token
                :: else
#endif
                fi;
                seen = 0
            };
            atomic {                                        /* in time; or the process ends */
                if
#ifdef LATE_BELIEF
                :: mine > 0 ->                              /* broken: however long it took */
                    held[me] = true; deadline[me] = LEASE; asked[me] = 0; check_belief()
#else
                :: mine > 0 && asked[me] > 0 -> held[me] = true; believe(); check_belief()
#endif
                :: give_up()
                fi
            };
            if
            :: !held[me] -> vacate()
            :: !held[me]                                    /* it has ended: nothing is vacated */
            :: held[me]
            fi
        fi;
        do
        :: !held[me] -> break
        :: held[me] ->                                      /* renew */
            asked[me] = LEASE;
            atomic {
                if
                :: lessee == id -> left = LEASE
                :: else -> give_up()
                fi
            };
            atomic {
                if
                :: asked[me] > 0 && deadline[me] > 0 -> believe(); check_belief()
                :: asked[me] = 0                            /* no answer: unknown is not lost */
                fi
            }
        :: atomic {                                         /* mark, in a fenced transaction */
            held[me] ->
            if
            :: token == mine && owner == id -> accept()
            :: else -> give_up()
            fi
           }
        :: held[me] ->                                      /* release, or vacate what is lost */
            give_up();
            atomic {
                if
                :: token == mine && owner == id -> owner = NOBODY
                :: else
                fi
            };
            vacate()
        :: held[me] -> give_up()                            /* crash */
        od
    od
}

init {
    byte h;
    atomic {
        for (h : 0 .. HOLDERS - 1) { run Holder(h) }
    }
}
