/* The requests that a program has: waiting for them, and calls that it begins again and again. */
#include <sched.h>
#include <stdlib.h>

#include "fermata_mpi_inside.h"
#include "fermata_rank.h"

enum { REQUESTS = 1 << 16 };

/* A call that can be begun again and again. */
struct persistent {
    enum { RECEIVES, SENDS, SENDS_SYNCHRONOUSLY } what;
    void *values;
    int count;
    MPI_Datatype type;
    int rank, tag;
    const struct info *info;
};

/* Those that the program has; what it holds is a place here, and 1. */
static struct {
    /* None: it is not begun. */
    struct request *active;
    struct persistent *persistent;
} requests[REQUESTS];
static size_t open_requests;

size_t fermata_mpi_open(void) { return open_requests; }

static size_t free_place(MPI_Request *handle) {
    size_t place = 0;
    while (place < REQUESTS && (requests[place].active || requests[place].persistent))
        place++;
    if (place == REQUESTS)
        fermata_mpi_die("more than %d requests are open", REQUESTS);
    *handle = (MPI_Request)(intptr_t)(place + 1);
    return place;
}

int fermata_mpi_give(struct request *request, MPI_Request *handle) {
    requests[free_place(handle)].active = request;
    open_requests++;
    return MPI_SUCCESS;
}

static size_t place_of(MPI_Request handle) {
    size_t place = (size_t)(intptr_t)handle - 1;
    if (place >= REQUESTS || !(requests[place].active || requests[place].persistent))
        fermata_mpi_die("a request was made by a call that fermata does not know, or is over already");
    return place;
}

/* NULL: there is nothing to wait for. */
static struct request *active(MPI_Request handle) { return handle == MPI_REQUEST_NULL ? NULL : requests[place_of(handle)].active; }

static void tell_nothing(MPI_Status *status) {
    const struct request nothing = {.source = MPI_ANY_SOURCE, .found_tag = MPI_ANY_TAG};
    fermata_mpi_tell(&nothing, status);
}

/* Nothing that was asked for has come. The program may do something else meanwhile, and another message may lead it to its next call. */
static void in_vain(void) { fermata_mpi_ours(fermata_rank_in_vain(ANY)); }

int MPI_Wait(MPI_Request *handle, MPI_Status *status) {
    if (!active(*handle)) {
        tell_nothing(status);
        return MPI_SUCCESS;
    }
    size_t place = place_of(*handle);
    fermata_mpi_end(requests[place].active, status);
    requests[place].active = NULL;
    open_requests--;
    if (!requests[place].persistent)
        *handle = MPI_REQUEST_NULL;
    return MPI_SUCCESS;
}

static MPI_Status *status_of(MPI_Status statuses[], int which) { return statuses == MPI_STATUSES_IGNORE ? MPI_STATUS_IGNORE : &statuses[which]; }

int MPI_Waitall(int count, MPI_Request handles[], MPI_Status statuses[]) {
    for (int which = 0; which < count; which++)
        MPI_Wait(&handles[which], status_of(statuses, which));
    return MPI_SUCCESS;
}

int MPI_Request_get_status(MPI_Request handle, int *is_complete, MPI_Status *status) {
    fermata_mpi_advance();
    struct request *request = active(handle);
    *is_complete = !request || fermata_mpi_is_over(request);
    if (!request) {
        tell_nothing(status);
    } else if (*is_complete) {
        fermata_mpi_complete(request);
        fermata_mpi_tell(request, status);
    } else {
        in_vain();
        sched_yield();
    }
    return MPI_SUCCESS;
}

int MPI_Test(MPI_Request *handle, int *is_complete, MPI_Status *status) {
    MPI_Request_get_status(*handle, is_complete, MPI_STATUS_IGNORE);
    return *is_complete ? MPI_Wait(handle, status) : MPI_SUCCESS;
}

int MPI_Testall(int count, MPI_Request handles[], int *are_complete, MPI_Status statuses[]) {
    fermata_mpi_advance();
    *are_complete = 1;
    for (int which = 0; which < count; which++)
        if (active(handles[which]) && !fermata_mpi_is_over(active(handles[which])))
            *are_complete = 0;
    if (*are_complete)
        return MPI_Waitall(count, handles, statuses);
    in_vain();
    sched_yield();
    return MPI_SUCCESS;
}

/* Ends up to `most` of those that are over. Returns how many: MPI_UNDEFINED if there is nothing to wait for. */
static int end_some(int count, MPI_Request handles[], int most, int indices[], MPI_Status statuses[]) {
    int ended = 0, open = 0;
    fermata_mpi_advance();
    for (int which = 0; which < count && ended < most; which++) {
        struct request *request = active(handles[which]);
        open |= request != NULL;
        if (!request || !fermata_mpi_is_over(request))
            continue;
        indices[ended] = which;
        MPI_Wait(&handles[which], status_of(statuses, ended++));
    }
    if (!open)
        return MPI_UNDEFINED;
    if (!ended)
        in_vain();
    return ended;
}

int MPI_Testsome(int count, MPI_Request handles[], int *ended, int indices[], MPI_Status statuses[]) {
    *ended = end_some(count, handles, count, indices, statuses);
    if (!*ended)
        sched_yield();
    return MPI_SUCCESS;
}

int MPI_Waitsome(int count, MPI_Request handles[], int *ended, int indices[], MPI_Status statuses[]) {
    while ((*ended = end_some(count, handles, count, indices, statuses)) == 0)
        fermata_mpi_rest();
    return MPI_SUCCESS;
}

int MPI_Testany(int count, MPI_Request handles[], int *index, int *is_complete, MPI_Status *status) {
    int ended = end_some(count, handles, 1, index, status);
    *is_complete = ended != 0;
    if (ended == MPI_UNDEFINED)
        tell_nothing(status);
    if (ended != 1)
        *index = MPI_UNDEFINED;
    if (!ended)
        sched_yield();
    return MPI_SUCCESS;
}

int MPI_Waitany(int count, MPI_Request handles[], int *index, MPI_Status *status) {
    int is_complete = 0;
    for (;;) {
        MPI_Testany(count, handles, index, &is_complete, status);
        if (is_complete)
            return MPI_SUCCESS;
        fermata_mpi_rest();
    }
}

/* Calls that are begun again and again. */

static int prepare(struct persistent call, MPI_Comm comm, MPI_Request *handle) {
    struct persistent *persistent = fermata_mpi_must(malloc(sizeof *persistent));
    *persistent = call;
    persistent->info = fermata_mpi_info(comm);
    /* The program may free its own. */
    if (fermata_mpi_is_derived(call.type))
        PMPI_Type_dup(call.type, &persistent->type);
    requests[free_place(handle)].persistent = persistent;
    return MPI_SUCCESS;
}

int MPI_Send_init(const void *values, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *handle) {
    return prepare((struct persistent){SENDS, (void *)values, count, type, to, tag, NULL}, comm, handle);
}

int MPI_Rsend_init(const void *values, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *handle) {
    return MPI_Send_init(values, count, type, to, tag, comm, handle);
}

int MPI_Bsend_init(const void *values, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *handle) {
    return MPI_Send_init(values, count, type, to, tag, comm, handle);
}

int MPI_Ssend_init(const void *values, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *handle) {
    return prepare((struct persistent){SENDS_SYNCHRONOUSLY, (void *)values, count, type, to, tag, NULL}, comm, handle);
}

int MPI_Recv_init(void *into, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request *handle) {
    return prepare((struct persistent){RECEIVES, into, count, type, from, tag, NULL}, comm, handle);
}

int MPI_Start(MPI_Request *handle) {
    size_t place = *handle == MPI_REQUEST_NULL ? REQUESTS : place_of(*handle);
    const struct persistent *call = place < REQUESTS ? requests[place].persistent : NULL;
    if (!call || requests[place].active)
        fermata_mpi_die("MPI_Start of a request that is begun already, or that no call like MPI_Send_init has made");
    if (call->what == RECEIVES)
        requests[place].active = fermata_mpi_await(call->info, of_pairs(call->info), call->values, call->count, call->type, call->rank, call->tag);
    else if (call->what == SENDS)
        requests[place].active = fermata_mpi_send(call->info, of_pairs(call->info), call->values, call->count, call->type, call->rank, call->tag);
    else
        requests[place].active = fermata_mpi_send_synchronously(call->info, call->values, call->count, call->type, call->rank, call->tag);
    open_requests++;
    return MPI_SUCCESS;
}

int MPI_Startall(int count, MPI_Request handles[]) {
    for (int which = 0; which < count; which++)
        MPI_Start(&handles[which]);
    return MPI_SUCCESS;
}

int MPI_Request_free(MPI_Request *handle) {
    size_t place = place_of(*handle);
    struct request *request = requests[place].active;
    struct persistent *persistent = requests[place].persistent;
    if (request) {
        fermata_mpi_advance();
        if (fermata_mpi_is_over(request))
            fermata_mpi_end(request, MPI_STATUS_IGNORE);
        else if (request->state == SENDING)
            request->is_forgotten = 1;
        else
            fermata_mpi_die("MPI_Request_free of a request that is under way, and more than a send, does not go with checkpoints: MPI_Wait ends it first");
        requests[place].active = NULL;
        open_requests--;
    }
    if (persistent && fermata_mpi_is_derived(persistent->type))
        PMPI_Type_free(&persistent->type);
    free(persistent);
    requests[place].persistent = NULL;
    *handle = MPI_REQUEST_NULL;
    return MPI_SUCCESS;
}
