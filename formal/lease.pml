/* The registry's row as lease and fence: obtain, renew, pause, take over, release, fenced mark.
 *
 * Every row that is written here is one conditional UPDATE, so one atomic step. What lies between
 * two steps of a holder is a pause of any length: a stopped process, a lost packet, a slow network.
 * README.md says what is proved, and which broken variants (-D...) must fail.
 */

#ifndef HOLDERS
#define HOLDERS 2
#endif
#ifndef ROUNDS
#define ROUNDS 2                  /* acquisitions of each holder */
#endif
#ifndef LEASE
#define LEASE 2                   /* in ticks of the clock */
#endif
#define NOBODY 0
#define MINE (owner == id && token == mine)

byte token;                       /* the row: the last token that was issued */
byte owner = NOBODY;              /*          the lock id of the holder */
byte left;                        /*          what is left of its lease, by the server's clock */
byte writer = NOBODY;             /* whose open transaction has locked the row */

bool held[HOLDERS];               /* a holder's own belief: it has not noticed a loss, */
byte deadline[HOLDERS];           /* and this is left until its local deadline */
byte asked[HOLDERS];              /* the deadline that the question under way would buy */

byte marked;                      /* the token of the last mark that was accepted */
bool forced;                      /* an operator has released by force */

#define believes(h) (held[h] && deadline[h] > 0)
#if HOLDERS == 2
#define believers (believes(0) + believes(1))
#define running (deadline[0] + deadline[1] + asked[0] + asked[1])
#else
#define believers (believes(0) + believes(1) + believes(2))
#define running (deadline[0] + deadline[1] + deadline[2] + asked[0] + asked[1] + asked[2])
#endif

/* At most one holds as far as anybody can know; whom an operator fenced off learns it later. */
inline check_belief() { assert(believers <= 1 || forced) }

inline issue() {
    token++;
    assert(token > marked)        /* tokens never repeat and never go down */
}

inline accept() {
    assert(mine == token);        /* no mark of a stale holder after a newer bump, */
    assert(mine >= marked);       /* nor after a newer mark */
    marked = mine
}

inline ask() { asked[me] = LEASE }

inline believe() {
#ifdef LATE_DEADLINE
    deadline[me] = LEASE;         /* broken: the lease runs from the answer */
#else
    if
    :: asked[me] > deadline[me] -> deadline[me] = asked[me]
    :: else
    fi;
#endif
    asked[me] = 0
}

inline give_up() { d_step { held[me] = false; deadline[me] = 0; asked[me] = 0 } }

/* All clocks run at one speed; when each of them says what does not matter. */
active proctype Clock() {
    byte h;
end:
    do
    :: d_step {
        left + running > 0 ->
        left = (left > 0 -> left - 1 : 0);
        for (h : 0 .. HOLDERS - 1) {
            deadline[h] = (deadline[h] > 0 -> deadline[h] - 1 : 0);
            asked[h] = (asked[h] > 0 -> asked[h] - 1 : 0)
        }
        h = 0
       }
    od
}

/* The server ends a transaction that stays open for too long (dead man's switch). */
active proctype Switch() {
end:
    do
    :: atomic { writer != NOBODY -> writer = NOBODY }
    od
}

/* Somebody releases by force what was seen to be held. */
active proctype Operator() {
end:
    atomic {
        writer == NOBODY && owner != NOBODY -> issue(); owner = NOBODY; forced = true
    }
}

proctype Holder(byte me) {
    byte round, id, mine;
    do
    :: round == ROUNDS -> break
    :: round < ROUNDS ->
        d_step { round++; id = me * ROUNDS + round; mine = 0; ask() };
        atomic {                                            /* obtain */
            if
            :: writer == NOBODY && (owner == NOBODY || left == 0) ->
                issue(); owner = id; left = LEASE; mine = token
            :: else -> give_up()                            /* busy */
            fi
        };
        atomic {                                            /* the answer arrives, or never does */
            if
            :: mine > 0 && asked[me] > 0 -> held[me] = true; believe(); check_belief()
            :: give_up()
            fi
        };
        do
        :: !held[me] -> break
        :: held[me] ->                                      /* renew */
            ask();
            atomic {
                writer == NOBODY ->
                if
                :: MINE -> left = LEASE
                :: else -> give_up()
                fi
            };
            atomic {
                if
                :: asked[me] > 0 && deadline[me] > 0 -> believe(); check_belief()
                :: asked[me] = 0                            /* no answer: unknown is not lost */
                fi
            }
        :: held[me] && deadline[me] == 0 -> give_up()       /* the watchdog */
        :: held[me] ->                                      /* mark, in a fenced transaction */
#ifdef PLAIN_READ
            atomic {                                        /* broken: the row is only read */
                if
                :: MINE
                :: else -> give_up()
                fi
            };
            atomic {
                if
                :: held[me] -> accept()
                :: else
                fi
            }
#else
            atomic {
                writer == NOBODY ->
                if
                :: MINE -> writer = id
                :: else -> give_up()
                fi
            };
            atomic {
                if
                :: writer == id -> accept(); writer = NOBODY
                :: else                                     /* nothing of it was committed */
                fi
            }
#endif
        :: held[me] ->                                      /* release */
            give_up();
            atomic {
                writer == NOBODY ->
                if
#ifdef BLIND_RELEASE
                :: true -> owner = NOBODY; left = 0         /* broken: whoever the owner is */
#else
                :: MINE -> owner = NOBODY; left = 0
                :: else
#endif
                fi
            }
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
