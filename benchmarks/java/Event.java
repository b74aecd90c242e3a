/** One event, as a user of either engine would write it: a plain object with getters and setters. */
public class Event {
    private long id;
    private String kind;
    private long key;
    private long ts;
    private double price;

    public Event() {}

    public Event(long id, String kind, long key, long ts, double price) {
        this.id = id;
        this.kind = kind;
        this.key = key;
        this.ts = ts;
        this.price = price;
    }

    public long getId() { return id; }
    public void setId(long id) { this.id = id; }
    public String getKind() { return kind; }
    public void setKind(String kind) { this.kind = kind; }
    public long getKey() { return key; }
    public void setKey(long key) { this.key = key; }
    public long getTs() { return ts; }
    public void setTs(long ts) { this.ts = ts; }
    public double getPrice() { return price; }
    public void setPrice(double price) { this.price = price; }
}
