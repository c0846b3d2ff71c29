// Graphs of the driver.

static struct made graph_instantiate(uintptr_t context, uintptr_t graph) {
    void *x = NULL;
    int r = enter(context);
    if (r == OK) r = cu.GraphInstantiateWithFlags(&x, (void *)graph, 0);
    return (struct made){r, x};
}
static struct number graph_nodes(uintptr_t context, uintptr_t graph) {
    size_t n = 0;
    int r = enter(context);
    if (r == OK) r = cu.GraphGetNodes((void *)graph, NULL, &n);
    return (struct number){r, (int64_t)n};
}
// graph_followers gives in list the nodes that wait for a node, or the first of a graph where that
// is 0, and their number.
static struct number graph_followers(uintptr_t context, uintptr_t graph, uintptr_t node, uintptr_t *list, size_t room) {
    enum { NOT_SUPPORTED = 801, MOST = 256 };
    edge_data edges[MOST]; // the driver refuses to leave them out
    size_t n = 0;
    int r = enter(context);
    if (r != OK) return (struct number){r, 0};
    if (cu.GraphNodeGetDependentNodes == NULL) return (struct number){NOT_SUPPORTED, 0};
    r = node == 0 ? cu.GraphGetRootNodes((void *)graph, NULL, &n) :
        cu.GraphNodeGetDependentNodes((void *)node, NULL, NULL, &n);
    if (r == OK && (n > room || n > MOST)) r = INVALID_VALUE;
    if (r == OK && n > 0) {
        r = node == 0 ? cu.GraphGetRootNodes((void *)graph, (void **)list, &n) :
            cu.GraphNodeGetDependentNodes((void *)node, (void **)list, edges, &n);
    }
    return (struct number){r, (int64_t)n};
}
// graph_add_record adds a record of an event behind some nodes and in front of others.
static int graph_add_record(uintptr_t context, uintptr_t graph, uintptr_t *after, size_t n, uintptr_t *before,
    size_t m, uintptr_t event) {
    enum { NOT_SUPPORTED = 801 };
    void *node = NULL;
    ENTER(context);
    if (cu.GraphAddDependencies == NULL) return NOT_SUPPORTED;
    int r = cu.GraphAddEventRecordNode(&node, (void *)graph, (void *const *)after, n, (void *)event);
    for (size_t i = 0; r == OK && i < m; i++)
        r = cu.GraphAddDependencies((void *)graph, &node, (void *const *)&before[i], NULL, 1);
    return r;
}
static int graph_destroy(uintptr_t context, uintptr_t graph) {
    ENTER(context);
    return cu.GraphDestroy((void *)graph);
}
static int graph_launch(uintptr_t context, uintptr_t exec, uintptr_t stream) {
    ENTER(context);
    return cu.GraphLaunch((void *)exec, (void *)stream);
}
static int exec_destroy(uintptr_t context, uintptr_t exec) {
    ENTER(context);
    return cu.GraphExecDestroy((void *)exec);
}
